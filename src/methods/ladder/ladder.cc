#include "methods/ladder/ladder.h"

#include <fmt/format.h>

#include "methods/ladder/ladder_rows.h"
#include "pith/error.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_step(const Parameters& p, const std::string& name, Side side) {
  const PolicyPart part = ladder_step(p, name);
  const CodecRow& row = codec_row(part.name);
  return row.make(Parameters(row.info, part), side);
}

std::unique_ptr<Codec> make_ladder(const Parameters& p, Side side) {
  auto old_codec = make_step(p, "old", side), young = make_step(p, "new", side);
  if (old_codec->pre_rope() != young->pre_rope())
    throw Error(ErrorCode::kUnsupported,
                fmt::format("ladder(new={},old={}): one stores keys before RoPE and the other "
                            "after; choose both of a kind (pith policies lists the codecs)",
                            p.text("new"), p.text("old")));
  return std::make_unique<LadderCodec>(std::move(old_codec), std::move(young), p.count("rows", 1));
}

}  // namespace

PolicyPart ladder_step(const Parameters& p, const std::string& name) {
  PolicyPart part = *Policy::parse("exact+" + p.text(name)).rules.front().key_codec;
  if (part.name == p.method())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}({}={}): a ladder's steps are other codecs", p.method(), name,
                            p.text(name)));
  return part;
}

CodecRow ladder_row() {
  CodecRow row;
  row.info = {"ladder",
              false,
              "the newest rows of the body in one codec, older ones in another",
              "this project",
              {{"new", "int8", "codec of the newest rows, with its settings"},
               {"old", "turboquant(bits=3,center=128)", "codec of the others, with its settings"},
               {"rows", "512", "rows that are new, up to 63 more"}},
              ""};
  row.make = make_ladder;
  return row;
}

}  // namespace pith
