// Selectors of programs: their function scores decoded rows, the rule is that of all selectors that
// keep the best (methods/selectors/scores). Cost: each row is decoded once at each selection.

#include "methods/selectors/own/own.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "methods/own_names.h"
#include "methods/selectors/scores/score_selector.h"
#include "pith/error.h"
#include "pith/own_selector.h"

namespace pith {
namespace {

using Table = OwnTable<SelectorRow, OwnSelector>;
Table& table() {
  static Table kTable;
  return kTable;
}

struct OwnOptions : ScoreOptions {
  std::string name;
};

class OwnScorer final : public Scorer {
 public:
  OwnScorer(const Context& context, const SelectorSite& site,
            std::shared_ptr<const OwnSelector> selector)
      : Scorer(context, site), selector_(std::move(selector)) {}

  std::unique_ptr<Chooser> clone() const override { return std::make_unique<OwnScorer>(*this); }

 private:
  void score(std::span<HeadBody> bodies, Scores& scores) const override {
    const size_t dim = site().head_dim;
    std::vector<float> keys, values;  // [rows, D]
    std::vector<int64_t> positions;
    std::vector<double> mass;
    for (size_t h = 0; h < bodies.size(); ++h) {
      const RowStore& store = bodies[h].store();
      const size_t rows = store.rows();
      keys.resize(rows * dim), values.resize(rows * dim), positions.resize(rows);
      store.read(keys.data(), values.data(), 0, rows);
      for (size_t r = 0; r < rows; ++r) positions[r] = store.position(r);
      if (selector_->mass != OwnSelector::Mass::kNone) {
        mass.resize(rows);
        copy_mass(mass, bodies[h]);
      }
      selector_->score({static_cast<int>(site().layer), static_cast<int>(bodies[h].head()), rows,
                        dim, keys.data(), values.data(), positions.data(), mass},
                       scores[h]);
    }
  }

  std::shared_ptr<const OwnSelector> selector_;
};

MassWish wish_of(const OwnSelector& selector) {
  switch (selector.mass) {
    case OwnSelector::Mass::kNone: return {};
    case OwnSelector::Mass::kAll: return {MassWish::Of::kAll};
    case OwnSelector::Mass::kLast: return {MassWish::Of::kVotes, selector.queries};
  }
  return {};
}

ResolvedSelector resolve_own(const SelectorPlace& place) {
  const auto options = place.options.as<OwnOptions>();
  const auto selector = table().functions(options.name);
  return best_by<OwnScorer>(place, options.name, options, wish_of(*selector), selector);
}

SelectorRow row_of(const OwnSelector& selector) {
  SelectorRow row = score_row(selector.name, selector.summary, "added by the program");
  row.takes<OwnOptions>();
  row.read = read_named<OwnOptions>;
  if (selector.mass != OwnSelector::Mass::kNone) {
    row.default_sink = 0;
    row.side_bytes = sizeof(uint32_t) + sizeof(float);
  }
  row.resolve = resolve_own;
  return row;
}

void check(const OwnSelector& selector) {
  check_own_name("add_selector", selector.name, true);
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("add_selector('{}'): {}", selector.name, why));
  };
  if (!selector.score) refuse("there is no function");
  if ((selector.mass == OwnSelector::Mass::kLast) != (selector.queries > 0))
    refuse("queries are counted for the mass of the last ones, 1 or more, and for no other");
}

}  // namespace

void add_selector(const OwnSelector& selector) {
  check(selector);
  table().add(
      selector.name, selector, [&] { return row_of(selector); },
      [&](const OwnSelector& earlier) {
        if (earlier.mass != selector.mass || earlier.queries != selector.queries)
          throw Error(ErrorCode::kInvalidArgument,
                      fmt::format("add_selector('{}'): it was added with other needs of mass; take "
                                  "another name",
                                  selector.name));
      });
}

const SelectorRow* find_added_selector(std::string_view name) { return table().find(name); }
std::vector<const SelectorRow*> added_selectors() { return table().rows(); }

}  // namespace pith
