#include "cache/stream_notes.h"

#include <fmt/format.h>

#include "pith/error.h"
#include "policy/options.h"

namespace pith {

void check_chunk(PromptReading prompt, size_t tokens) {
  if (tokens < 2 || prompt == PromptReading::kChunks) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("prompt={} is of sessions, which read a prompt a layer at a time; here "
                          "{} rows come at once, and attend to each other exactly: leave it out",
                          to_string(prompt), tokens));
}

void StreamNotes::archive(Archive& a, uint64_t& tokens, size_t context,
                          const std::function<void(std::span<const TokenRange>)>& protect) {
  size_t ranges = protected_rows.ranges().size();
  a.need(!a.loads() || (tokens == 0 && ranges == 0), "state goes into a cache that has seen none");
  a.number(tokens, uint64_t{context}, "more tokens than the context has");
  a.number(ranges, context, "more protected ranges than the context has tokens");
  a.check_left(ranges, 2 * sizeof(int64_t));
  std::vector<TokenRange> all = protected_rows.ranges();
  all.resize(ranges);
  for (TokenRange& range : all) {
    a.number(range.first, INT64_MAX);
    a.number(range.last, INT64_MAX);
  }
  if (a.loads()) protect(all);
  size_t ends = prompt_ends.size();
  a.number(ends, size_t{tokens} + 1, "more prompts than tokens");
  a.check_left(ends, sizeof(uint64_t));
  if (a.loads()) prompt_ends.resize(ends);
  for (size_t i = 0; i < ends; ++i) {
    uint64_t& end = prompt_ends[i];
    a.number(end, tokens, "a prompt that ended past the tokens");
    a.need(i == 0 || end > prompt_ends[i - 1], "prompts that ended out of order");
  }
  if (!gathers) return;
  if (a.loads()) gathered.resize(ends);
  for (size_t i = 0; i < ends; ++i) {
    a.number(gathered[i], tokens);
    a.need(gathered[i] < prompt_ends[i], "a prompt that begins past its end");
    a.need(i == 0 || gathered[i] >= prompt_ends[i - 1], "prompts that began out of order");
  }
}

}  // namespace pith
