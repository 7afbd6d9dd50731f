// Sums, and what every answer tells of itself.

#include "serve/listener_base.h"

namespace pith::serve {
namespace {

const char* word(StopReason reason) {
  switch (reason) {
    case StopReason::kEndOfText: return "end_of_text";
    case StopReason::kStopString: return "stop_string";
    case StopReason::kMaxTokens: return "token_limit";
    case StopReason::kContextFull: return "context_full";
    case StopReason::kCancelled: return "cancelled";
    case StopReason::kAttentionError: return "attention_error";
  }
  return "unknown";
}

double rate(size_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

void AnswerListener::tell_pieces(size_t choice, const std::vector<ToolPiece>& pieces) {
  for (const ToolPiece& piece : pieces) {
    switch (piece.kind) {
      case ToolPiece::Kind::kText: words(choice, piece.text, {}); break;
      case ToolPiece::Kind::kBegins: call_begins(choice, piece.text); break;
      case ToolPiece::Kind::kArguments: call_grows(choice, piece.text); break;
      case ToolPiece::Kind::kEnds: call_ends(choice); break;
    }
  }
}

void AnswerListener::piece(size_t choice, std::string_view text, std::span<const TokenShown> tokens,
                           std::span<const int32_t> ids) {
  drawn(choice, tokens, ids);
  if (options_.tools) return tell_pieces(choice, readers_[choice].push(text));
  words(choice, text, tokens);
}

void AnswerListener::choice_ended(size_t choice, StopReason reason) {
  if (options_.tools) tell_pieces(choice, readers_[choice].finish());
  over(choice, reason);
}

void AnswerListener::ended(const Totals& totals) {
  sum(totals);
  if (--left_ > 0 || failed_) return;
  reply_->note("prompt_tokens", usage_.prompt_tokens);
  reply_->note("cached_tokens", usage_.cached_tokens);
  reply_->note("completion_tokens", usage_.completion_tokens);
  complete(more());
}

void AnswerListener::failed(const Refusal& refusal) {
  if (!failed_.exchange(true)) tell(refusal);
}

void AnswerListener::sum(const Totals& t) {
  usage_.prompt_tokens += t.prompt_tokens;
  usage_.cached_tokens += t.cached_tokens;
  usage_.completion_tokens += t.drawn_tokens;
  const double prompt = totals_.prompt_seconds + t.prompt_seconds;
  const double decode = totals_.decode_seconds + t.decode_seconds;
  totals_ = t;
  totals_.prompt_seconds = prompt;
  totals_.decode_seconds = decode;
}

Json AnswerListener::more() const {
  const size_t read = usage_.prompt_tokens - usage_.cached_tokens;
  const Json timings{
      {"prompt_n", read},
      {"prompt_ms", totals_.prompt_seconds * 1000},
      {"prompt_per_second", rate(read, totals_.prompt_seconds)},
      {"predicted_n", usage_.completion_tokens},
      {"predicted_ms", totals_.decode_seconds * 1000},
      {"predicted_per_second", rate(usage_.completion_tokens, totals_.decode_seconds)}};
  const Json pith{{"policy", options_.policy},
                  {"seed", options_.seed},
                  {"stop_reason", word(totals_.reason)},
                  {"reuse",
                   {{"kind", totals_.reuse_kind},
                    {"tokens", totals_.cached_tokens},
                    {"reason_of_miss", totals_.reuse_reason}}},
                  {"cache_bytes", totals_.bytes},
                  {"reserved_bytes", totals_.reserved_bytes},
                  {"bits", totals_.bits}};
  return {{"timings", timings}, {"pith", pith}};
}

}  // namespace pith::serve
