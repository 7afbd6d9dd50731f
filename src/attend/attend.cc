// Checks a call and chooses the path: few query rows are bound by memory, many by arithmetic.

#include "attend/attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attend/parts.h"
#include "pith/error.h"

namespace pith {
namespace {

// Up to here reading a row costs more than scoring it, whatever the codec.
constexpr size_t kDecodeRows = 16;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, "attention: " + message);
}

void check_span(const AttendCall& call, const Span& span) {
  if (span.count == 0) return;
  const size_t dim = call.shape.head_dim;
  if (!span.keys) refuse("a span of rows has no keys");
  if (!span.values && span.role != Role::kDenominator)
    refuse("a span without values can only count in the denominator");
  for (const CodedRows* rows : {span.keys, span.values}) {
    if (!rows) continue;
    if (rows->dim() != dim)
      refuse(fmt::format("rows have {} channels, queries {}", rows->dim(), dim));
    if (span.first + span.count > rows->rows())
      refuse(fmt::format("rows [{}, {}) asked for, {} stored", span.first, span.first + span.count,
                         rows->rows()));
  }
  if ((span.keys_before_rope || span.query_shift != 0) &&
      (!call.rope || call.rope->head_dim() != dim))
    refuse("keys stored before RoPE and shifted queries need a Rope of the same head_dim");
}

Geometry check(const AttendCall& call) {
  const AttentionShape& s = call.shape;
  if (s.kv_heads == 0 || s.query_heads == 0 || s.query_heads % s.kv_heads != 0)
    refuse(
        fmt::format("{} query heads do not divide among {} KV heads", s.query_heads, s.kv_heads));
  if (s.head_dim == 0 || s.head_dim % 16 != 0 || s.head_dim > 512)
    refuse(fmt::format("head_dim {} is not supported; multiples of 16 up to 512 are", s.head_dim));
  if (!call.q || !call.out) refuse("queries and a place for the result are needed");
  if (!call.k != !call.v) refuse("the chunk's keys and values come together");
  if (call.before > 0 && !call.k) refuse("there are no rows before the queries without keys");
  if (call.sliding_window < 0) refuse("the sliding window must be 0 (none) or positive");
  if (!(s.variant.soft_cap >= 0) || std::isinf(s.variant.soft_cap))
    refuse(fmt::format("a soft cap of {}; it is positive, or 0 for none", s.variant.soft_cap));
  if (!call.spans.empty() && call.spans.size() != s.kv_heads)
    refuse(fmt::format("{} lists of spans for {} KV heads", call.spans.size(), s.kv_heads));
  for (const auto& list : call.spans)
    for (const Span& span : list) check_span(call, span);
  return {.query_heads = s.query_heads,
          .kv_heads = s.kv_heads,
          .group = s.query_heads / s.kv_heads,
          .dim = s.head_dim,
          .tokens = call.tokens,
          .before = call.before,
          .scale = s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<float>(s.head_dim))};
}

}  // namespace

size_t decode_queries(size_t tokens, size_t group) {
  return std::min(tokens * group, std::max(kDecodeRows, group));
}

size_t attend_scratch(const AttendRoom& room, size_t workers) {
  const size_t group = room.query_heads / room.kv_heads;
  const bool many = room.tokens > 1 && room.tokens * group > kDecodeRows;
  return std::max(decode_scratch(room, workers), many ? prefill_scratch(room, workers) : 0);
}

Geometry checked_geometry(const AttendCall& call) { return check(call); }

void attend(const Context& context, const AttendCall& call) {
  if (call.tokens == 0) return;
  const Geometry geometry = check(call);
  if (call.tokens == 1 || call.tokens * geometry.group <= kDecodeRows)
    attend_decode(context, call, geometry);
  else
    attend_prefill(context, call, geometry);
}

}  // namespace pith
