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
}

}  // namespace pith
