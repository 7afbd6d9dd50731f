#include "cache/host_tables.h"

#include <fmt/format.h>

namespace pith {
namespace {

const SideChoice& choice_of(const CohortPolicy& policy, Side side) {
  return side == Side::kKeys ? policy.keys : policy.values;
}

}  // namespace

std::shared_ptr<const Codec> HostTables::codec(const CohortPolicy& policy, Side side) {
  const SideChoice& choice = choice_of(policy, side);
  const SelectorSite& site = policy.site;
  const auto head = static_cast<uint32_t>(policy.heads.front());
  std::shared_ptr<const Codec> made = choice.make_codec(side);
  const RowsRequest request{.side = side,
                            .dim = site.head_dim,
                            .head = head,
                            .seed = site.seed,
                            .layer = site.layer,
                            .model = policy.model};
  if (made->table_bytes(request) == 0) return made;
  // Not of the model: tables that are trained for one lie in a mapped file, and are not drawn here.
  const auto name = fmt::format("{} of {}, layer {}, head {}, {} channels, seed {}",
                                to_string(choice.codec), side == Side::kKeys ? "keys" : "values",
                                site.layer, head, site.head_dim, site.seed);
  const std::lock_guard turn(turn_);
  if (auto there = codecs_.find(name)) return there;
  // Codecs draw tables for their first rows, which nobody else may do at the same time.
  const size_t before = memory_.total();
  made->make_rows({pool_, memory_, kernels_}, request);
  if (memory_.total() > before) codecs_.add(name, made);
  return made;
}

std::shared_ptr<const Rope> HostTables::rope(std::shared_ptr<const Rope> rope) {
  if (!rope) return rope;
  const auto& angles = rope->frequencies();
  const std::string name(reinterpret_cast<const char*>(angles.data()),
                         angles.size() * sizeof(double));
  const std::lock_guard turn(turn_);
  return ropes_.of(name, [&] { return rope; });
}

std::shared_ptr<const Codec> codec_of(HostTables* tables, const CohortPolicy& policy, Side side) {
  if (tables) return tables->codec(policy, side);
  return choice_of(policy, side).make_codec(side);
}

}  // namespace pith
