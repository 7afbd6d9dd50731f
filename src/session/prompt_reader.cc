// How a prompt is cut: into pieces, and these into chunks.

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"
#include "pith/prefix_tree.h"
#include "session/state.h"

namespace pith {

std::vector<size_t> prompt_pieces(const Prompt& prompt, size_t from) {
  std::vector<size_t> ends;
  size_t last = from;
  if (!std::ranges::is_sorted(prompt.fork_points))
    throw Error(ErrorCode::kInvalidArgument,
                "the fork points of a prompt are not in ascending order");
  for (const size_t point : prompt.fork_points) {
    if (point < last + kLeastPiece || point >= prompt.tokens.size()) continue;
    ends.push_back(point);
    last = point;
  }
  ends.push_back(prompt.tokens.size());
  return ends;
}

PromptReader::PromptReader(const Session& session, const Prompt& prompt)
    : engine_(session.engine()),
      tokens_(prompt.tokens),
      reading_(session.options().policy.prompt),
      at_(session.tokens()) {
  if (at_ >= tokens_.size() || !std::ranges::equal(session.token_ids(), tokens_.first(at_)))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a session that has seen {} tokens, and a prompt of {} that does not "
                            "go on from them; give it the session that begin() made for it",
                            at_, tokens_.size()));
  if (reading_ == PromptReading::kOnce) {
    prompt_pieces(prompt);  // fork points in order are asked of all
    ends_ = {tokens_.size()};
    return;
  }
  // In the middle of a piece, the pieces are those of a session that read it from its beginning.
  const Session::State& s = *session.state_;
  ends_ = prompt_pieces(prompt, !s.in_prompt ? at_ : s.cuts.empty() ? 0 : s.cuts.back());
}

size_t PromptReader::piece_end() const { return *std::ranges::upper_bound(ends_, at_); }

Work PromptReader::next(Session& session) const {
  const size_t end = piece_end();
  const size_t count =
      reading_ == PromptReading::kChunks ? engine_->next_chunk(end - at_) : end - at_;
  Work work;
  work.session = &session;
  work.tokens = tokens_.subspan(at_, count);
  work.append = at_ + count < end       ? Append::kPart
                : end == tokens_.size() ? Append::kPromptEnds
                                        : Append::kMore;
  return work;
}

bool PromptReader::took(const Work& work) {
  at_ += work.tokens.size();
  return work.append == Append::kMore;
}

}  // namespace pith
