#include "plan/protected_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "pith/error.h"

namespace pith {
namespace {

[[noreturn]] void refuse(const TokenRange& r, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("protected tokens {}:{}: {}", r.first, r.last, why));
}

}  // namespace

void ProtectedRows::add(std::span<const TokenRange> ranges, int64_t seen, int64_t limit) {
  std::vector<TokenRange> all = ranges_;
  for (const TokenRange& r : ranges) {
    if (r.first < 0 || r.first >= r.last)
      refuse(r,
             "no range; give FIRST:LAST with 0 <= FIRST < LAST, where LAST is the first token "
             "that is not protected");
    if (r.first < seen)
      refuse(r, fmt::format("{} tokens were seen already and their rows compressed; protect tokens "
                            "before they come, from {} on",
                            seen, seen));
    if (limit > 0 && r.last > limit)
      refuse(r, fmt::format("the context has {} tokens; end the range at {} or raise the context",
                            limit, limit));
    for (const TokenRange& other : all)
      if (r.first < other.last && other.first < r.last)
        refuse(r, fmt::format("overlaps {}:{}; give each token once", other.first, other.last));
    all.push_back(r);
  }
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.first < b.first; });
  ranges_ = std::move(all);
}

int64_t ProtectedRows::before(int64_t position) const {
  int64_t n = 0;
  for (const TokenRange& r : ranges_) {
    if (r.first >= position) break;
    n += std::min(r.last, position) - r.first;
  }
  return n;
}

ProtectedRows ProtectedRows::from(int64_t first) const {
  ProtectedRows out;
  for (const TokenRange& r : ranges_)
    if (r.last > first) out.ranges_.push_back({std::max(r.first, first), r.last});
  return out;
}

ProtectedRows::Run ProtectedRows::run_at(int64_t position, int64_t most) const {
  for (const TokenRange& r : ranges_) {
    if (position >= r.last) continue;
    if (position >= r.first) return {std::min(most, r.last - position), true};
    return {std::min(most, r.first - position), false};
  }
  return {most, false};
}

int64_t ProtectedRows::position_of(int64_t ordinal) const {
  int64_t position = ordinal;
  for (const TokenRange& r : ranges_) {
    if (r.first > position) break;
    position += r.last - r.first;
  }
  return position;
}

std::vector<TokenRange> parse_ranges(std::string_view text) {
  std::vector<TokenRange> ranges;
  const std::string all(text);
  const bool open_end = text.ends_with(',');
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const size_t colon = one.find(':');
    TokenRange r;
    const char* end = one.data() + one.size();
    const auto number = [](const char* from, const char* to, int64_t& out) {
      const auto [at, error] = std::from_chars(from, to, out);
      return error == std::errc{} && at == to && from != to;
    };
    const bool good = !open_end && colon != std::string_view::npos &&
                      number(one.data(), one.data() + colon, r.first) &&
                      number(one.data() + colon + 1, end, r.last);
    if (!good)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is no list of token ranges; write FIRST:LAST,..., such as "
                              "0:120,500:620 for tokens 0 to 119 and 500 to 619",
                              all));
    ranges.push_back(r);
  }
  return ranges;
}

std::string to_string(const std::vector<TokenRange>& ranges) {
  std::string text;
  for (const TokenRange& r : ranges)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", r.first, r.last);
  return text;
}

}  // namespace pith
