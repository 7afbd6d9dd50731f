#include "serve/guard.h"

#include <fmt/format.h>

#include <algorithm>

namespace pith::serve {
namespace {

/// "Host: [::1]:8080" -> "[::1]".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, std::min(host.find(']'), host.size() - 1) + 1);
  return host.substr(0, host.find(':'));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// Paths that need no key: the health check and the page's own files.
bool is_open(const std::string& path) {
  return path == "/health" || path == "/v1/health" || path == "/" || path.starts_with("/page/");
}

}  // namespace

bool same_secret(std::string_view a, std::string_view b) {
  size_t differ = a.size() ^ b.size();
  for (size_t i = 0; i < a.size(); ++i)
    differ |= static_cast<unsigned char>(a[i]) ^
              static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return differ == 0;
}

Guard::Guard(const GuardOptions& options) : options_(options) {
  for (std::string& host : options_.hosts) host = lower(host);
}

bool Guard::host_is_ours(std::string_view given) const {
  const std::string host = lower(without_port(given));
  if (host == "localhost" || host == "127.0.0.1" || host == "[::1]") return true;
  const std::string own = options_.address.find(':') == std::string::npos
                              ? options_.address
                              : "[" + options_.address + "]";
  if (host == own) return true;
  return std::any_of(options_.hosts.begin(), options_.hosts.end(),
                     [&](const std::string& h) { return h == "*" || h == host; });
}

bool Guard::same_origin(const http::Request& head, const std::string& origin) const {
  const std::string* host = head.find("Host");
  const size_t at = origin.find("://");
  return host != nullptr && at != std::string::npos && lower(origin.substr(at + 3)) == lower(*host);
}

std::optional<std::string> Guard::allowed_origin(const http::Request& head) const {
  const std::string* origin = head.find("Origin");
  if (origin == nullptr) return std::nullopt;
  for (const std::string& allowed : options_.origins)
    if (allowed == "*" || allowed == *origin) return *origin;
  return std::nullopt;
}

std::optional<size_t> Guard::key_of(const http::Request& head) const {
  std::string given;
  if (const std::string* bearer = head.find("Authorization")) {
    if (lower(bearer->substr(0, 7)) == "bearer ") given = bearer->substr(7);
  } else if (const std::string* key = head.find("X-Api-Key")) {
    given = *key;
  }
  std::optional<size_t> found;
  for (size_t i = 0; i < options_.keys.size(); ++i)
    if (same_secret(given, options_.keys[i])) found = i;
  return found;
}

std::string Guard::name_of_key(size_t index) { return fmt::format("key {}", index); }

std::string Guard::tenant(const http::Request& head) const {
  const auto key = key_of(head);
  return key ? name_of_key(*key) : "";
}

std::optional<Refusal> Guard::refuse(const http::Request& head) const {
  size_t hosts = 0;
  for (const http::Header& header : head.headers) hosts += lower(header.name) == "host" ? 1 : 0;
  const std::string* host = head.find("Host");
  if (hosts != 1 || !host_is_ours(*host))
    return Refusal(403, "host_not_allowed",
                   "the Host header names neither this machine's loopback nor an --allow-host");
  const std::string* origin = head.find("Origin");
  const bool asks_only = head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS";
  if (origin != nullptr && !asks_only && !same_origin(head, *origin) && !allowed_origin(head))
    return Refusal(
        403, "origin_not_allowed",
        "a page of another origin may not ask; the server allows those of --cors-origin");
  if (options_.keys.empty() || is_open(head.path) || head.method == "OPTIONS") return std::nullopt;
  if (key_of(head)) return std::nullopt;
  return Refusal(401, "invalid_api_key",
                 "the key is missing or wrong; send it as 'Authorization: Bearer KEY'");
}

}  // namespace pith::serve
