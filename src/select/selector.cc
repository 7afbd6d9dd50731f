#include "select/selector.h"

#include <cmath>

#include "pith/error.h"

namespace pith {
namespace {

// BalanceKV's buckets of norms (kMostTrees of them) and the two stores that are there anyway.
constexpr size_t kMostStores = 300;

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::kInternal,
              std::string("a rule asks its chooser to ") + what + ", which this one does not do");
}

}  // namespace

Chosen Chooser::choose(const Step&, size_t, HeadBody&, const NewRows&) { refuse("select rows"); }

void Chooser::take(size_t, HeadBody&, const NewRows&) { refuse("take rows by their contents"); }

void Chooser::archive(Archive& a, const ChooserPlace&) {
  a.need(state_bytes() == 0, "a selector says that it has state, and not what it is");
}

float Chooser::log_weight(const Step& step) const {
  return static_cast<float>(
      std::log(static_cast<double>(step.weight) / static_cast<double>(step.of)));
}

HeadBody::HeadBody(const Context& context, const RowFormat& format)
    : context_(context), format_(format), stores_{} {
  stores_.emplace_back(context, format);
  const auto first = static_cast<int64_t>(format.sink);
  const auto asked = static_cast<int64_t>(format.keys->first_queries());
  if (asked > 0) energy_.emplace(context.memory, format.dim, first, first + asked);
}

RowStore& HeadBody::add_store(Role role) {
  RowStore& store = stores_.emplace_back(context_, format_, role);
  if (energy_) store.show_queries(energy_->mean());
  return store;
}

void HeadBody::observe(const QueryBlock& block) {
  if (!energy_) return;
  const HeadQueries queries{block.q + format_.head * format_.group * format_.dim,
                            block.query_heads * format_.dim, block.tokens, format_.group,
                            block.first_position};
  if (!energy_->add(queries)) return;
  for (RowStore& store : stores_) store.show_queries(energy_->mean());
}

void HeadBody::add_to(Ledger& ledger) const {
  for (const RowStore& store : stores_) store.add_to(ledger);
  if (!energy_) return;
  ledger.metadata += energy_->bytes();
  ledger.slack += energy_->allocated_bytes() - energy_->bytes();
}

void HeadBody::archive(Archive& a, size_t tokens) {
  size_t count = stores();
  a.number(count, kMostStores, "more stores than a body has");
  a.need(count > 0, "a body without a store");
  for (size_t i = 0; i < count; ++i) {
    auto role = static_cast<uint8_t>(i < stores() ? store(i).role() : Role::kBoth);
    a.number(role, static_cast<uint8_t>(Role::kDenominator), "a role that there is not");
    if (i == stores()) add_store(static_cast<Role>(role));
    a.need(static_cast<Role>(role) == store(i).role(), "the first store has rows for both sums");
    store(i).archive(a, tokens);
  }
  if (energy_) energy_->archive(a);
}

}  // namespace pith
