// Sampling from logits: repetition penalty (Keskar et al. 2019, section 4.1), top-k (Fan et al.
// 2018), nucleus (Holtzman et al. 2020), min-p (Nguyen et al. 2024), temperature; llama.cpp's
// order. Cost: one pass over V logits, plus a sort of what top-k leaves (of all V if top-k is off
// and top-p is on).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "core/moved.h"
#include "core/philox.h"
#include "pith/error.h"
#include "pith/generate.h"

namespace pith {
namespace {

// Compression methods number their streams by real layers, so this layer's stream is free.
constexpr uint32_t kSamplingStream = 0xFFFE;
constexpr float kOut = -std::numeric_limits<float>::infinity();  // never drawn

void require(bool fine, const char* name, const std::string& value, const char* wanted) {
  if (fine) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + " is " + value + "; it must be " + wanted);
}

void check(const SamplingOptions& o) {
  require(o.temperature >= 0 && std::isfinite(o.temperature), "temperature",
          std::to_string(o.temperature), "a finite number of 0 or more (0 = greedy)");
  require(o.top_k >= 0, "top_k", std::to_string(o.top_k), "0 (off) or more");
  require(o.top_p >= 0 && o.top_p <= 1, "top_p", std::to_string(o.top_p), "in 0..1 (1 = off)");
  require(o.min_p >= 0 && o.min_p <= 1, "min_p", std::to_string(o.min_p), "in 0..1 (0 = off)");
  require(o.repeat_penalty > 0 && std::isfinite(o.repeat_penalty), "repeat_penalty",
          std::to_string(o.repeat_penalty), "a finite number above 0 (1 = off)");
  require(std::isfinite(o.presence_penalty), "presence_penalty", std::to_string(o.presence_penalty),
          "a finite number (0 = off)");
  require(std::isfinite(o.frequency_penalty), "frequency_penalty",
          std::to_string(o.frequency_penalty), "a finite number (0 = off)");
  for (const auto& [id, bias] : o.logit_bias)
    require(id >= 0 && (std::isfinite(bias) || bias == kOut), "logit_bias",
            fmt::format("{} for token {}", bias, id),
            "a finite number, or -inf (never drawn), for a token id of 0 or more");
  require(o.repeat_last_n >= -1, "repeat_last_n", std::to_string(o.repeat_last_n),
          "-1 (all), 0 (off) or more");
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options, uint64_t first_draw)
    : options_(options), draws_(first_draw) {
  check(options);
}

void Sampler::check_there() const {
  if (presence_.gone) refuse_moved("a sampler");
}

const SamplingOptions& Sampler::options() const {
  check_there();
  return options_;
}

void Sampler::set_mask(std::span<const uint32_t> words) {
  check_there();
  mask_.assign(words.begin(), words.end());
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> history) {
  check_there();
  fill(logits, history);
  sorted_ = 0;
  return draw_candidate();
}

int32_t Sampler::sample_ranked(std::span<const Candidate> best) {
  check_there();
  candidates_.assign(best.begin(), best.end());
  sorted_ = best.size();
  return draw_candidate();
}

int32_t Sampler::draw_candidate() {
  if (candidates_.empty()) {
    throw Error(ErrorCode::kNonFinite,
                "none of the logits that may be drawn is finite, so no token can be drawn");
  }
  const uint64_t draw_number = draws_++;
  if (options_.temperature == 0) {
    // Candidates are in the order of their ids or ranks, and max_element returns the first of
    // equals.
    return std::max_element(
               candidates_.begin(), candidates_.end(),
               [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
        ->id;
  }
  keep_top_k();
  keep_top_p();
  keep_min_p();
  return draw(draw_number);
}

Sampler::Ranking Sampler::ranking(std::span<const int32_t> history, size_t vocabulary) const {
  check_there();
  return {options_.temperature == 0 ? 1 : static_cast<size_t>(options_.top_k),
          adjustments(history, vocabulary), mask_};
}

std::vector<Sampler::Adjustment> Sampler::adjustments(std::span<const int32_t> history,
                                                      size_t vocabulary) const {
  std::vector<Adjustment> all;
  for (const int32_t id : options_.never) all.push_back({id, kOut, 1, 0});
  for (const auto& [id, bias] : options_.logit_bias) all.push_back({id, bias, 1, 0});
  const SamplingOptions& o = options_;
  if (o.repeat_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0) {
    std::vector<int32_t> ids(recent(history).begin(), recent(history).end());
    std::sort(ids.begin(), ids.end());
    for (auto at = ids.begin(); at != ids.end();) {
      const auto next = std::upper_bound(at, ids.end(), *at);
      const float times = static_cast<float>(next - at);
      all.push_back({*at, 0, o.repeat_penalty, o.presence_penalty + o.frequency_penalty * times});
      at = next;
    }
  }
  std::erase_if(all, [&](const Adjustment& a) {
    return a.id < 0 || static_cast<size_t>(a.id) >= vocabulary;
  });
  std::stable_sort(all.begin(), all.end(),
                   [](const Adjustment& a, const Adjustment& b) { return a.id < b.id; });
  size_t kept = 0;
  for (const Adjustment& a : all) {
    if (kept == 0 || all[kept - 1].id != a.id) {
      all[kept++] = a;
      continue;
    }
    Adjustment& one = all[kept - 1];
    one = {a.id, one.bias + a.bias, one.divisor * a.divisor, one.minus + a.minus};
  }
  all.resize(kept);
  return all;
}

std::span<const int32_t> Sampler::recent(std::span<const int32_t> history) const {
  const size_t back =
      options_.repeat_last_n < 0 ? history.size() : static_cast<size_t>(options_.repeat_last_n);
  return history.last(std::min(back, history.size()));
}

// candidates_ <- the finite logits that may be drawn, in the order of their ids, adjusted.
void Sampler::fill(std::span<const float> logits, std::span<const int32_t> history) {
  logits_.assign(logits.begin(), logits.end());
  for (const Adjustment& a : adjustments(history, logits.size())) {
    float& x = logits_[static_cast<size_t>(a.id)];
    x += a.bias;
    x = x > 0 ? x / a.divisor : x * a.divisor;
    x -= a.minus;
  }
  if (!mask_.empty()) {
    for (size_t id = 0; id < logits_.size(); ++id)
      if (id / 32 >= mask_.size() || (mask_[id / 32] >> (id % 32) & 1u) == 0) logits_[id] = kOut;
  }
  candidates_.clear();
  for (size_t id = 0; id < logits_.size(); ++id) {
    if (std::isfinite(logits_[id])) {
      candidates_.push_back({logits_[id], static_cast<int32_t>(id)});
    }
  }
}

void Sampler::sort_first(size_t count) {
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(count),
                    candidates_.end(), [](const Candidate& a, const Candidate& b) {
                      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                    });
  sorted_ = count;
}

void Sampler::keep_top_k() {
  if (options_.top_k == 0) return;
  // In the order of their ranks even if all stay: what is drawn depends on the order.
  const size_t k = std::min(static_cast<size_t>(options_.top_k), candidates_.size());
  if (sorted_ < k) sort_first(k);
  candidates_.resize(k);
}

void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  if (sorted_ < candidates_.size()) sort_first(candidates_.size());
  const float highest = candidates_[0].logit;
  double sum = 0;
  for (const Candidate& c : candidates_) sum += std::exp(double{c.logit} - highest);
  double held = 0;
  size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || held < options_.top_p * sum)) {
    held += std::exp(double{candidates_[kept++].logit} - highest);
  }
  candidates_.resize(kept);
}

void Sampler::keep_min_p() {
  if (options_.min_p <= 0) return;
  const double threshold = highest_logit() + std::log(double{options_.min_p});
  std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < threshold; });
}

float Sampler::highest_logit() const {
  float highest = -std::numeric_limits<float>::infinity();
  for (const Candidate& c : candidates_) highest = std::max(highest, c.logit);
  return highest;
}

int32_t Sampler::draw(uint64_t draw_number) const {
  const double highest = highest_logit(), inverse = 1.0 / options_.temperature;
  const auto weight = [&](const Candidate& c) { return std::exp((c.logit - highest) * inverse); };
  double sum = 0;
  for (const Candidate& c : candidates_) sum += weight(c);
  const uint64_t word = Philox(options_.seed, kSamplingStream, 0).word64(draw_number);
  double left = static_cast<double>(word >> 11) * 0x1p-53 * sum;
  for (const Candidate& c : candidates_) {
    left -= weight(c);
    if (left < 0) return c.id;
  }
  // Rounding may leave a crumb after the last subtraction: it belongs to the last that can be
  // drawn.
  return std::find_if(candidates_.rbegin(), candidates_.rend(),
                      [&](const Candidate& c) { return weight(c) > 0; })
      ->id;
}

TokenLogprobs log_probabilities(std::span<const float> logits, int32_t token, size_t top) {
  if (token < 0 || static_cast<size_t>(token) >= logits.size())
    throw Error(ErrorCode::kInvalidArgument, "token " + std::to_string(token) + " is none of the " +
                                                 std::to_string(logits.size()) +
                                                 " that there are logits of");
  const float highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - highest);
  const double norm = highest + std::log(sum);
  if (!std::isfinite(norm))
    throw Error(ErrorCode::kNonFinite,
                "logits that are NaN or infinite have no probabilities; -inf is one of 0");
  const auto logprob = [&](size_t id) { return static_cast<float>(logits[id] - norm); };
  std::vector<int32_t> ids;
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  top = std::min(top, logits.size());
  for (int32_t id = 0; top > 0 && static_cast<size_t>(id) < logits.size(); ++id) {
    if (ids.size() == top && !before(id, ids.back())) continue;
    if (ids.size() == top) ids.pop_back();
    ids.insert(std::upper_bound(ids.begin(), ids.end(), id, before), id);
  }
  TokenLogprobs result{logprob(static_cast<size_t>(token)), {}};
  for (const int32_t id : ids) result.top.push_back({id, logprob(static_cast<size_t>(id))});
  return result;
}

}  // namespace pith
