// State that was saved: session files and layers. Their digests are made right again, so that what
// they guard is reached. The first byte names the policy.

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/digest.h"
#include "fuzz/fuzz.h"
#include "layer/test_layer.h"
#include "pith/saved.h"
#include "pith/session.h"

namespace pith::fuzz {
namespace {

Digest digest_at(const std::string& bytes, size_t from, size_t count) {
  return digest_of(std::as_bytes(std::span(bytes).subspan(from, count)));
}

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T x;
  std::memcpy(&x, bytes.data() + at, sizeof(x));
  return x;
}

/// Writes the digests of the sections that a session's header names into it.
void sign_sections(std::string& bytes, size_t data) {
  const auto json = nlohmann::json::parse(
      bytes.begin() + 64, bytes.begin() + static_cast<ptrdiff_t>(data), nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("sections")) return;
  if (bytes.size() - data < 8) return;
  size_t at = data + 8 + std::min<size_t>(number_at<uint64_t>(bytes, data), bytes.size());
  size_t place = 64;
  for (const auto& section : json["sections"]) {
    if (!section.is_object() || !section.contains("digest") || !section.contains("length")) return;
    if (!section["digest"].is_string() || !section["length"].is_number_unsigned()) return;
    const auto length = section["length"].get<uint64_t>();
    if (at > bytes.size() || length > bytes.size() - at) return;
    const auto old = section["digest"].get<std::string>();
    place = bytes.find(old, place);
    if (old.size() != 32 || place == std::string::npos || place + 32 > data) return;
    bytes.replace(place, 32, digest_at(bytes, at, length).text());
    at += (length + 63) / 64 * 64;
  }
}

std::string signed_session(std::string bytes) {
  if (bytes.size() < 64) return bytes;
  const uint64_t size = bytes.size();
  std::memcpy(bytes.data() + 16, &size, sizeof(size));
  const auto header = number_at<uint64_t>(bytes, 24);
  if (header > size - 64) return bytes;
  sign_sections(bytes, 64 + header);
  const std::array<Digest, 2> digests = {digest_at(bytes, 64, header),
                                         digest_at(bytes, 64 + header, size - 64 - header)};
  std::memcpy(bytes.data() + 32, digests.data(), sizeof(digests));
  return bytes;
}

constexpr std::array kSessionPolicies = {
    "exact", "snapkv(budget=16,interval=8)+int4,window=8", "express(heavy=0,s=8)+kivi(bits=4)",
    "h2o(budget=16,interval=8),window=8", "streaming_llm(window=12,rope=cache)"};

SessionOptions session_options(size_t policy) {
  SessionOptions o;
  o.policy = Policy::parse(kSessionPolicies[policy]);
  o.context = 200;
  if (o.policy.to_string().find("rope=cache") == std::string::npos) o.error_probe = {64, 4, 0};
  return o;
}

const std::shared_ptr<Engine>& engine() {
  static const auto one = [] {
    EngineOptions o;
    o.threads = 1;
    o.chunk = 16;
    return std::make_shared<Engine>(Model::load(file("state.gguf", tiny_gguf())), o);
  }();
  return one;
}

std::string saved(const Session& session) {
  std::string bytes;
  session.save([&](std::span<const std::byte> more) {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
  });
  return bytes;
}

std::vector<std::string> session_seeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < kSessionPolicies.size(); ++i) {
    Session session(engine(), session_options(i));
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < 45; ++id) ids.push_back(3 + id % 40);
    session.append(ids);
    for (int32_t id = 3; id < 9; ++id) session.decode(id);
    seeds.push_back(static_cast<char>(i) + saved(session));
  }
  return seeds;
}

bool restore_session(std::string_view input) {
  if (input.empty()) return false;
  const size_t policy = static_cast<uint8_t>(input.front()) % kSessionPolicies.size();
  const std::string bytes = signed_session(std::string(input.substr(1)));
  const auto path = file("a.pith", bytes);
  harmless([&] { (void)read_saved(path, true); });
  return harmless([&] {
    Session session =
        Session::restore(engine(), std::as_bytes(std::span(bytes)), session_options(policy));
    need(session.tokens() == session.token_ids().size(), "a session has an id a token");
    (void)session.rows(0, 0);
    (void)session.attention_errors();
    need(session.ledger().rows_kept <= 4 * session.ledger().rows_seen + 4, "rows are of tokens");
    const std::string again = saved(session);
    Session second =
        Session::restore(engine(), std::as_bytes(std::span(again)), session_options(policy));
    const std::array<int32_t, 3> ids = {4, 5, 6};
    std::vector<float> a, b;
    const bool one = harmless([&] {
      const auto x = session.prefill(ids);
      a.assign(x.begin(), x.end());
    });
    const bool two = harmless([&] {
      const auto x = second.prefill(ids);
      b.assign(x.begin(), x.end());
    });
    need(one == two && a == b, "what was restored and saved goes on the same");
    if (one) (void)session.fork().decode(7);
  });
}

constexpr std::array kLayerPolicies = {"exact",
                                       "exact+kivi",
                                       "exact+qjl",
                                       "exact+gear",
                                       "exact+turboquant",
                                       "exact+int4(center=16),sink=2,window=4",
                                       "exact+csr(online=16),window=4",
                                       "exact+kvquant,window=4",
                                       "exact+ladder,window=4",
                                       "uniform(budget=12)",
                                       "express(heavy=0,s=8)+kivi(bits=2),sink=2,window=4",
                                       "balancekv(heavy=0,rate=0.5)+int4,window=4",
                                       "buzz(T=16,s=4)",
                                       "h2o(budget=16)",
                                       "snapkv(budget=16)",
                                       "adakv(budget=16)",
                                       "keydiff(budget=16)",
                                       "streaming_llm(window=16)",
                                       "expected_attention(budget=16)",
                                       "tova(budget=16)"};
const test::Shape kLayerShape{
    .head_dim = 64, .group = 2, .kv_heads = 1, .layers = 1, .context = 256};

const test::Rows& rows() {
  static const test::Rows some(kLayerShape, 64, 5);
  return some;
}

std::vector<std::string> layer_seeds() {
  std::vector<std::string> seeds;
  for (size_t i = 0; i < kLayerPolicies.size(); ++i) {
    test::LayerUnderTest layer(kLayerShape, kLayerPolicies[i]);
    layer.step(rows(), 0, 40, 40);
    layer.cache.end_prompt();
    layer.step(rows(), 40, 46, 1);
    const auto bytes = layer.cache.save();
    seeds.push_back(static_cast<char>(i) +
                    std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  return seeds;
}

/// As LayerCache::save writes it: a magic word, a key of counted texts, the digest of the rest.
std::string signed_layer(std::string bytes) {
  if (bytes.size() < 12) return bytes;
  size_t at = 12;
  for (uint32_t left = 2 * std::min(number_at<uint32_t>(bytes, 8), uint32_t{64}); left > 0;
       --left) {
    if (bytes.size() - at < 4) return bytes;
    const auto size = number_at<uint32_t>(bytes, at);
    if (size > bytes.size() - at - 4) return bytes;
    at += 4 + size;
  }
  if (bytes.size() - at < sizeof(Digest)) return bytes;
  const Digest digest = digest_at(bytes, at + sizeof(digest), bytes.size() - at - sizeof(digest));
  std::memcpy(bytes.data() + at, &digest, sizeof(digest));
  return bytes;
}

bool restore_layer(std::string_view input) {
  if (input.empty()) return false;
  static const auto runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  const size_t policy = static_cast<uint8_t>(input.front()) % kLayerPolicies.size();
  const std::string bytes = signed_layer(std::string(input.substr(1)));
  const LayerCacheOptions options = test::options_of(kLayerShape, kLayerPolicies[policy]);
  return harmless([&] {
    test::LayerUnderTest layer(kLayerShape, kLayerPolicies[policy]);
    layer.cache = LayerCache::restore(runtime, options, std::as_bytes(std::span(bytes)));
    const HeadRows held = layer.cache.rows(0);
    need(held.positions.size() == held.log_weights.size(), "a row has a weight");
    std::vector<float> k(held.positions.size() * 64), v(k.size());
    layer.cache.read_rows(0, k.data(), v.data());
    const auto again = layer.cache.save();
    test::LayerUnderTest second(kLayerShape, kLayerPolicies[policy]);
    second.cache = LayerCache::restore(runtime, options, again);
    std::vector<float> a, b;
    const bool one = harmless([&] { a = layer.step(rows(), 46, 64, 6); });
    const bool two = harmless([&] { b = second.step(rows(), 46, 64, 6); });
    // Bits: an answer may be NaN where a forged row is out of all range.
    need(one == two && a.size() == b.size() &&
             std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0,
         "what was restored and saved goes on the same");
  });
}

}  // namespace

std::span<const Target> state_targets() {
  static const Target all[] = {
      {"session", session_seeds, restore_session, 200},
      {"layer", layer_seeds, restore_layer, 400},
  };
  return all;
}

}  // namespace pith::fuzz
