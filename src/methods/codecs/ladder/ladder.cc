#include "methods/codecs/ladder/ladder.h"

#include <fmt/format.h>

#include "methods/codecs/ladder/ladder_rows.h"
#include "methods/methods.h"
#include "pith/error.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_step(const PolicyPart& part, Side side) {
  const CodecRow& row = codec_row(part.name);
  return row.make(row.read(part), side);
}

std::unique_ptr<Codec> make_ladder(const MethodOptions& options, Side side) {
  const auto& o = options.as<LadderOptions>();
  auto old_codec = make_step(o.old, side), young = make_step(o.young, side);
  if (old_codec->pre_rope() != young->pre_rope())
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: one stores keys before RoPE and the other after; choose both of a "
                            "kind (pith policies lists the codecs)",
                            write_options("ladder", o)));
  return std::make_unique<LadderCodec>(std::move(old_codec), std::move(young), o.rows);
}

/// Two formats of rows of levels under one kernel.
Offers ladder_on_gpu(const MethodOptions& options, const OfferSite& site) {
  const auto& o = options.as<LadderOptions>();
  const std::string text = write_options("ladder", o);
  Offers ladder{.codec = text, .code = text, .levels = false, .aged = true};
  const std::pair<const char*, const PolicyPart&> steps[] = {{"old", o.old}, {"new", o.young}};
  for (const auto& [parameter, part] : steps) {
    const CodecRow& row = codec_row(part.name);
    const Offers step = row.on_gpu ? row.on_gpu(row.read(part), site) : Offers{.levels = false};
    const bool fits = step.levels && !step.before_rope;
    ladder.limits.push_back({parameter,
                             "int8, int4, kivi, qjl, turboquant or gear, keys after RoPE",
                             fits ? "" : fmt::format("ladder({}={})", parameter, to_string(part))});
    ladder.block = step.block;  // rows come to the new ones, the last of the two
    ladder.limits.insert(ladder.limits.end(), step.limits.begin(), step.limits.end());
  }
  return ladder;
}

}  // namespace

Fields LadderOptions::fields() {
  return {codec("new", young, "codec of the newest rows"), codec("old", old, "codec of the others"),
          whole("rows", rows, {.least = 1}, "rows that are new, up to 63 more")};
}

void LadderOptions::check(const std::string& method) const {
  for (const PolicyPart& step : {young, old})
    if (step.name == method)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: {} cannot be one of its steps; a ladder's steps are other codecs",
                      method, to_string(step)));
}

CodecRow ladder_row() {
  CodecRow row;
  row.info = {
      "ladder",       false, "the newest rows of the body in one codec, older ones in another",
      "this project", {},    ""};
  row.takes<LadderOptions>();
  row.make = make_ladder;
  row.on_gpu = ladder_on_gpu;
  return row;
}

}  // namespace pith
