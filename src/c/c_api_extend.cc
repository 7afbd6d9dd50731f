// The C face: selectors and codecs of programs.

#include "c/c_api.h"
#include "pith/own_codec.h"
#include "pith/own_selector.h"
#include "pith/pith_extend.h"

namespace pith::c_api {
namespace {

/// A program's function that ended the pass.
void check_answer(int answer, const std::string& name) {
  if (answer != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "a function of '" + name + "' ended the pass with " + std::to_string(answer) +
                    "; it returns 0 where rows can be scored or coded");
}

OwnSelector selector_of(const pith_own_selector& from) {
  static_assert(PITH_MASS_LAST == static_cast<int>(OwnSelector::Mass::kLast));
  OwnSelector to;
  to.name = text_or_none(from.name);
  to.summary = text_or_none(from.summary);
  to.mass = static_cast<OwnSelector::Mass>(one_of(from.mass, 3, "mass"));
  to.queries = from.queries;
  if (from.score)
    to.score = [score = from.score, user = from.user, name = to.name](const RowsToScore& rows,
                                                                      std::span<double> scores) {
      const pith_rows_to_score r = {.size = sizeof(r),
                                    .layer = rows.layer,
                                    .head = rows.head,
                                    .rows = rows.rows,
                                    .head_dim = rows.head_dim,
                                    .keys = rows.keys,
                                    .values = rows.values,
                                    .positions = rows.positions,
                                    .mass = rows.mass.empty() ? nullptr : rows.mass.data()};
      check_answer(score(&r, scores.data(), user), name);
    };
  return to;
}

pith_rows_to_code rows_of(const RowsToCode& rows) {
  return {.size = sizeof(pith_rows_to_code),
          .layer = rows.layer,
          .head = rows.head,
          .keys = rows.keys,
          .rows = rows.rows,
          .head_dim = rows.head_dim,
          .row_bytes = rows.row_bytes};
}

OwnCodec codec_of(const pith_own_codec& from) {
  OwnCodec to;
  to.name = text_or_none(from.name);
  to.summary = text_or_none(from.summary);
  if (from.row_bytes)
    to.row_bytes = [f = from.row_bytes, user = from.user](size_t dim) { return f(dim, user); };
  if (from.encode)
    to.encode = [f = from.encode, user = from.user, name = to.name](
                    const RowsToCode& rows, const float* x, uint8_t* codes) {
      const pith_rows_to_code r = rows_of(rows);
      check_answer(f(&r, x, codes, user), name);
    };
  if (from.decode)
    to.decode = [f = from.decode, user = from.user, name = to.name](
                    const RowsToCode& rows, const uint8_t* codes, float* x) {
      const pith_rows_to_code r = rows_of(rows);
      check_answer(f(&r, codes, x, user), name);
    };
  return to;
}

}  // namespace
}  // namespace pith::c_api

using namespace pith::c_api;  // NOLINT(google-build-using-namespace): all functions are of it

pith_status pith_add_selector(const pith_own_selector* selector, pith_error* error) {
  return guarded(error, [&] {
    pith::add_selector(
        selector_of(read(&given(selector, "the selector"), pith_own_selector{}, "the selector")));
  });
}

pith_status pith_add_codec(const pith_own_codec* codec, pith_error* error) {
  return guarded(error, [&] {
    pith::add_codec(codec_of(read(&given(codec, "the codec"), pith_own_codec{}, "the codec")));
  });
}
