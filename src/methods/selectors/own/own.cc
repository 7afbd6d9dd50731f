// Selectors of programs: their function scores decoded rows, the rule is that of all selectors that
// keep the best (methods/selectors/scores). Cost: each row is decoded once at each selection.
//
// The table of names is the library's one mutable global: a policy is a text, and texts are read in
// places that no table could be handed to (docs/decisions/0311).

#include "methods/selectors/own/own.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "methods/selectors/scores/score_selector.h"
#include "pith/error.h"
#include "pith/own_selector.h"

namespace pith {
namespace {

struct Added {
  SelectorRow row;
  std::shared_ptr<const OwnSelector> selector;
};

struct Table {
  std::mutex mutex;
  std::map<std::string, Added, std::less<>> all;  // never erased from: rows stay where they are
};

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
  std::shared_ptr<const OwnSelector> selector;
  {
    const std::lock_guard lock(table().mutex);
    selector = table().all.at(options.name).selector;
  }
  return best_by<OwnScorer>(place, options.name, options, wish_of(*selector), selector);
}

SelectorRow row_of(const OwnSelector& selector) {
  SelectorRow row = score_row(selector.name, selector.summary, "added by the program");
  row.takes<OwnOptions>();
  row.read = [](const PolicyPart& part) {
    OwnOptions options = read_options<OwnOptions>(part).as<OwnOptions>();
    options.name = part.name;
    return MethodOptions(std::move(options));
  };
  if (selector.mass != OwnSelector::Mass::kNone) {
    row.default_sink = 0;
    row.side_bytes = sizeof(uint32_t) + sizeof(float);
  }
  row.resolve = resolve_own;
  return row;
}

void check(const OwnSelector& selector) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("add_selector('{}'): {}", selector.name, why));
  };
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto good = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  if (selector.name.empty() || !letter(selector.name[0]) ||
      !std::ranges::all_of(selector.name, good))
    refuse("a name is lower-case letters, digits and _, and begins with a letter");
  for (const char* word : {"auto", "half", "quarter", "tenth"})
    if (selector.name == word) refuse("this word says a size where policies are read");
  if (find_codec(selector.name) != nullptr) refuse("a codec has this name");
  if (find_selector(selector.name) != nullptr && find_added_selector(selector.name) == nullptr)
    refuse("a built-in selector has this name");
  if (!selector.score) refuse("there is no function");
  if ((selector.mass == OwnSelector::Mass::kLast) != (selector.queries > 0))
    refuse("queries are counted for the mass of the last ones, 1 or more, and for no other");
}

}  // namespace

void add_selector(const OwnSelector& selector) {
  check(selector);
  auto shared = std::make_shared<const OwnSelector>(selector);
  const std::lock_guard lock(table().mutex);
  const auto [at, is_new] = table().all.try_emplace(selector.name);
  if (is_new) {
    at->second.row = row_of(selector);
  } else if (at->second.selector->mass != selector.mass ||
             at->second.selector->queries != selector.queries) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("add_selector('{}'): it was added with other needs of mass; take "
                            "another name",
                            selector.name));
  }
  at->second.selector = std::move(shared);
}

const SelectorRow* find_added_selector(std::string_view name) {
  const std::lock_guard lock(table().mutex);
  const auto at = table().all.find(name);
  return at == table().all.end() ? nullptr : &at->second.row;
}

std::vector<const SelectorRow*> added_selectors() {
  const std::lock_guard lock(table().mutex);
  std::vector<const SelectorRow*> rows;
  for (const auto& [name, added] : table().all) rows.push_back(&added.row);
  return rows;
}

}  // namespace pith
