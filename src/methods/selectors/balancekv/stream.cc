// BalanceKV's guaranteed form (its paper, Alg. 1 and 3): numerator rows in buckets of value norms,
// denominator rows apart. Store 0 of a body stays empty; each tree has a store with its role.

#include <algorithm>
#include <cmath>

#include "methods/selectors/balancekv/balancekv.h"

namespace pith {
namespace {

struct Bucket {
  int32_t exponent = 0;  ///< holds 2^(exponent-1) < |v| <= 2^exponent
  bool live = false;     ///< else its store waits for another bucket
  BalanceTree tree;
};

/// One head. Entry i of `buckets` is store i + 2; store 1 is the denominator's.
struct Head {
  explicit Head(MemoryCounter& memory) : buckets(memory, MemoryKind::kMetadata) {}
  Array<Bucket> buckets;
  BalanceTree denominator;
  uint64_t seen = 0, failures = 0;
  float largest_value = 0;  ///< |v|
  float largest_key = 0;    ///< |k|^2, the paper's r^2
};

int32_t exponent_of(float norm) {
  int exponent = 0;
  const float fraction = std::frexp(norm, &exponent);  // norm = fraction 2^exponent, in [1/2, 1)
  return fraction == 0.5f ? exponent - 1 : exponent;
}

class Stream final : public BalanceStream {
 public:
  Stream(const Context& context, const SelectorSite& site, const BalanceRule& rule)
      : context_(context),
        site_(site),
        rule_(rule),
        values_(context, rule.halver(), site.seed, site.layer),
        denominator_(context, rule.halver(false), site.seed, site.layer) {
    for (size_t h = 0; h < site.heads; ++h) heads_.emplace_back(context.memory);
  }

  void take(size_t h, HeadBody& body, const NewRows& rows) override {
    if (body.stores() == 1) body.add_store(Role::kDenominator);
    for (size_t i = 0; i < rows.count; ++i) take_row(body, heads_[h], rows.slice(i, 1));
  }
  void archive(Archive& a, const ChooserPlace& place) override {
    for (size_t h = 0; h < heads_.size(); ++h) archive_head(a, heads_[h], place.bodies[h], place);
  }
  size_t state_bytes() const override {
    size_t bytes = 0;
    for (const Head& h : heads_) bytes += h.buckets.size() * sizeof(Bucket);
    return bytes;
  }
  size_t allocated_state_bytes() const override {
    size_t bytes = 0;
    for (const Head& h : heads_) bytes += h.buckets.capacity_bytes();
    return bytes;
  }
  std::unique_ptr<Chooser> clone() const override { return std::make_unique<Stream>(*this); }
  uint64_t failures() const override {
    uint64_t n = 0;
    for (const Head& h : heads_) n += h.failures;
    return n;
  }
  size_t buckets(size_t head) const override {
    size_t n = 0;
    for (const Bucket& b : heads_[head].buckets) n += b.live;
    return n;
  }

 private:
  void archive_head(Archive& a, Head& head, HeadBody& body, const ChooserPlace& place) const;
  void archive_tree(Archive& a, BalanceTree& tree, size_t rows) const;
  void take_row(HeadBody& body, Head& head, const NewRows& row) const {
    const Kernels& kernels = context_.kernels;
    const size_t d = site_.head_dim;
    ++head.seen;
    add(body.store(1), head.denominator, row, {head, body.head(), false});
    const float norm = std::sqrt(kernels.dot(row.v, row.v, d));
    head.largest_value = std::max(head.largest_value, norm);
    head.largest_key = std::max(head.largest_key, kernels.dot(row.k, row.k, d));
    const int32_t erased = erase(body, head);
    const int32_t exponent = norm > 0 ? exponent_of(norm) : erased;
    if (exponent <= erased) return;
    const size_t at = bucket_of(body, head, exponent);
    add(body.store(at + 2), head.buckets[at].tree, row, {head, body.head(), true});
  }

  /// A row goes into a tree.
  struct To {
    Head& head;
    uint32_t number;
    bool values;
  };
  void add(RowStore& store, BalanceTree& tree, const NewRows& row, const To& to) const {
    const Halver& halver = to.values ? values_ : denominator_;
    advance(tree, rule_.shape(to.values), 1, [&](const Step& step) -> uint32_t {
      if (step.op == Op::kMove) store.append(row);
      if (step.op == Op::kPick) halver.pick(store, to.number, row, step);
      if (step.op != Op::kHalve) return 0;
      const SegmentHalved halved = halver.halve(store, to.number, step);
      to.head.failures += halved.failures;
      return static_cast<uint32_t>(halved.kept);
    });
  }

  /// Erases buckets too small to matter; returns the largest exponent that is too small.
  int32_t erase(HeadBody& body, Head& head) const {
    const double log2_limit =
        std::log2(static_cast<double>(rule_.epsilon) / (2.0 * static_cast<double>(head.seen))) -
        static_cast<double>(head.largest_key) * site_.scale / std::log(2.0) +
        (head.largest_value > 0 ? std::log2(static_cast<double>(head.largest_value)) : -150.0);
    const auto limit = static_cast<int32_t>(std::floor(std::max(log2_limit, -200.0)));
    for (size_t i = 0; i < head.buckets.size(); ++i)
      if (head.buckets[i].live && head.buckets[i].exponent <= limit) {
        body.store(i + 2).clear();
        head.buckets[i] = Bucket{};
      }
    return limit;
  }

  size_t bucket_of(HeadBody& body, Head& head, int32_t exponent) const {
    size_t free = head.buckets.size();
    for (size_t i = 0; i < head.buckets.size(); ++i) {
      if (head.buckets[i].live && head.buckets[i].exponent == exponent) return i;
      if (!head.buckets[i].live) free = i;
    }
    if (free == head.buckets.size()) {
      head.buckets.push_back(Bucket{});
      body.add_store(Role::kNumerator);
    }
    head.buckets[free].exponent = exponent;
    head.buckets[free].live = true;
    return free;
  }

  Context context_;
  SelectorSite site_;
  BalanceRule rule_;
  Halver values_, denominator_;
  std::vector<Head> heads_;
};

/// Trees look at their stores' last rows: what they say of them must be so.
void Stream::archive_tree(Archive& a, BalanceTree& tree, size_t rows) const {
  constexpr uint32_t kMostBase = 40;  // 2^40 rows a stratum
  a.number(tree.batches, UINT64_MAX);
  a.number(tree.base, rule_.endless ? kMostBase : 0, "a tree's base is too large");
  a.number(tree.stratum, (uint64_t{1} << tree.base) - 1, "a stratum has too many rows");
  uint64_t held = tree.stratum > 0 ? 1 : 0;
  for (uint32_t l = 0; l <= kBalanceRounds; ++l) {
    const uint32_t most = l == 0 && rule_.rounds > 0 ? rule_.block - 1 : UINT32_MAX;
    a.number(tree.levels[l], l <= rule_.rounds ? most : 0, "a tree's level has too many rows");
    held += tree.levels[l];
  }
  a.need(held == rows, "a tree and its store differ in their rows");
}

void Stream::archive_head(Archive& a, Head& head, HeadBody& body, const ChooserPlace& place) const {
  a.number(head.seen, uint64_t{place.tokens}, "more rows than tokens");
  a.number(head.failures, UINT64_MAX);
  a.number(head.largest_value);
  a.number(head.largest_key);
  size_t buckets = head.buckets.size();
  a.number(buckets, body.stores(), "more buckets than stores");
  a.need(body.store().rows() == 0, "the first store of mode=stream has rows");
  a.need(body.stores() == (head.seen > 0 ? 2 + buckets : 1), "buckets and stores differ");
  if (head.seen == 0) return;
  a.need(body.store(1).role() == Role::kDenominator, "the second store is the denominator's");
  archive_tree(a, head.denominator, body.store(1).rows());
  for (size_t i = 0; i < buckets; ++i) {
    if (a.loads()) head.buckets.push_back(Bucket{});
    Bucket& bucket = head.buckets[i];
    a.number(bucket.exponent, 1024, "an exponent that no norm has");
    a.flag(bucket.live);
    a.need(body.store(i + 2).role() == Role::kNumerator, "a bucket's store is the numerator's");
    archive_tree(a, bucket.tree, body.store(i + 2).rows());
  }
}

}  // namespace

std::unique_ptr<BalanceStream> make_balance_stream(const Context& context, const SelectorSite& site,
                                                   const BalanceRule& rule) {
  return std::make_unique<Stream>(context, site, rule);
}

}  // namespace pith
