#include "serve/guard.h"

#include <gtest/gtest.h>

#include "serve/metrics.h"

namespace pith::serve {
namespace {

http::Request request(const std::string& method, const std::string& path,
                      std::vector<http::Header> headers, const std::string& host = "localhost") {
  http::Request out;
  out.method = method, out.path = path, out.headers = std::move(headers);
  if (!host.empty()) out.headers.push_back({"Host", host});
  return out;
}

int status(const Guard& guard, const http::Request& head) {
  const auto refusal = guard.refuse(head);
  return refusal ? refusal->status : 200;
}

TEST(Guard, HostsMustBeOurs) {
  const Guard guard({.address = "192.168.0.7", .hosts = {"Models.Example"}});
  for (const char* good : {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "[::1]",
                           "192.168.0.7:8080", "models.example", "MODELS.example:443"})
    EXPECT_EQ(status(guard, request("GET", "/v1/models", {}, good)), 200) << good;
  for (const char* bad :
       {"", "evil", "localhost.evil", "evil:127.0.0.1", "[::2]", "[", "192.168.0.8"})
    EXPECT_EQ(status(guard, request("GET", "/v1/models", {}, bad)), 403) << bad;
  EXPECT_EQ(status(guard, request("GET", "/", {{"Host", "localhost"}})), 403);  // two of them
  EXPECT_EQ(status(Guard({.hosts = {"*"}}), request("GET", "/", {}, "any")), 200);
}

TEST(Guard, PagesElsewhereMayNotChangeAnything) {
  const Guard guard({.origins = {"http://page.example"}});
  const auto post = [](const char* origin) {
    return request("POST", "/tokenize", {{"Origin", origin}}, "localhost:8080");
  };
  EXPECT_EQ(status(guard, post("http://localhost:8080")), 200);
  EXPECT_EQ(status(guard, post("http://page.example")), 200);
  EXPECT_EQ(status(guard, post("http://localhost:8081")), 403);
  EXPECT_EQ(status(guard, post("null")), 403);
  EXPECT_EQ(guard.allowed_origin(post("http://page.example")), "http://page.example");
  EXPECT_EQ(guard.allowed_origin(post("http://localhost:8080")), std::nullopt);
}

TEST(Guard, KeysOpenEverythingButHealth) {
  const Guard guard({.keys = {"one-key", "two-keys"}});
  const auto with = [](const char* path, const char* value) {
    return request("GET", path, {{"Authorization", value}});
  };
  EXPECT_EQ(status(guard, request("GET", "/health", {})), 200);
  EXPECT_EQ(status(guard, request("GET", "/metrics", {})), 401);
  EXPECT_EQ(status(guard, with("/metrics", "Bearer one-key")), 200);
  EXPECT_EQ(status(guard, with("/metrics", "bearer two-keys")), 200);
  for (const char* bad : {"Bearer ", "Bearer one-ke", "Bearer one-keyy", "one-key", ""})
    EXPECT_EQ(status(guard, with("/metrics", bad)), 401) << bad;
  EXPECT_EQ(status(guard, request("GET", "/metrics", {{"X-Api-Key", "one-key"}})), 200);
  EXPECT_NE(guard.tenant(with("/", "Bearer one-key")), guard.tenant(with("/", "Bearer two-keys")));
}

TEST(Guard, Secrets) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_TRUE(same_secret("", ""));
  EXPECT_FALSE(same_secret("abc", "abcabc"));
  EXPECT_FALSE(same_secret("abcabc", "abc"));
  EXPECT_FALSE(same_secret("", "a"));
  EXPECT_FALSE(same_secret("a", ""));
}

TEST(Metrics, HistogramsCountUpwards) {
  Histogram h({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 7.0}) h.add(value);
  EXPECT_EQ(h.text("x", "a=\"b\""),
            "x_bucket{a=\"b\",le=\"1\"} 2\nx_bucket{a=\"b\",le=\"2\"} 3\n"
            "x_bucket{a=\"b\",le=\"+Inf\"} 4\nx_sum{a=\"b\"} 10\nx_count{a=\"b\"} 4\n");
}

TEST(Metrics, NamesThatRoutersKnow) {
  Metrics metrics("de\"mo");
  metrics.finished({.reason = "stop", .prompt_tokens = 7, .cached_tokens = 3, .drawn_tokens = 5});
  metrics.refused("queue_full");
  const std::string text =
      metrics.text({.running = 2, .waiting = 1, .budget = 100, .reserved = 50});
  for (const char* line :
       {"vllm:num_requests_running{model=\"demo\"} 2\n",
        "vllm:kv_cache_usage_perc{model=\"demo\"} 0.5\n",
        "vllm:request_success_total{model=\"demo\",finished_reason=\"stop\"} 1\n",
        "vllm:prefix_cache_hits{model=\"demo\"} 3\n",
        "vllm:generation_tokens_total{model=\"demo\"} 5\n",
        "pith_admission_refused_total{model=\"demo\",reason=\"queue_full\"} 1\n",
        "vllm:time_to_first_token_seconds_count{model=\"demo\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

}  // namespace
}  // namespace pith::serve
