#include "compress/heavy.h"

#include <algorithm>
#include <numeric>

namespace pith {
namespace {

/// Rows on their way from the heavy store of one head to the inner selector.
struct Leaving {
  explicit Leaving(MemoryCounter& memory)
      : k(memory, MemoryKind::kScratch), v(memory, MemoryKind::kScratch) {}
  Array<float> k, v;               // [interval, D]
  std::vector<int64_t> positions;  // [interval]
  std::vector<float> mass;         // [interval]
};

class Heavy final : public Selector {
 public:
  Heavy(const Context& context, const SelectorSite& site, const HeavySizes& sizes,
        std::unique_ptr<Selector> inner)
      : context_(context), dim_(site.head_dim), sizes_(sizes), inner_(std::move(inner)) {}
  Heavy(const Heavy& other)
      : context_(other.context_),
        dim_(other.dim_),
        sizes_(other.sizes_),
        inner_(other.inner_->clone()),
        held_(other.held_) {}

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    if (bodies.empty()) return;
    for (HeadBody& body : bodies)
      if (body.stores() == 1) body.add_store(Role::kBoth);
    for (size_t done = 0; done < rows[0].count;) {
      const size_t n = std::min(rows[0].count - done, sizes_.most() - held_);
      for (size_t h = 0; h < bodies.size(); ++h)
        bodies[h].store(kHeavyStore).append(rows[h].slice(done, n));
      done += n;
      held_ += n;
      if (held_ == sizes_.most()) evict(bodies);
    }
  }
  size_t block_rows() const override { return inner_->block_rows(); }
  MassRequest mass(size_t tokens) const override { return sizes_.mass(tokens, held_); }
  size_t rows_after(size_t n) const override {
    const size_t heavy = std::min(n, sizes_.most());
    return heavy + inner_->rows_after(n > sizes_.budget ? n - sizes_.budget : 0);
  }
  size_t state_bytes() const override { return inner_->state_bytes(); }
  size_t allocated_state_bytes() const override { return inner_->allocated_state_bytes(); }
  std::string describe() const override { return inner_->describe(); }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<Heavy>(*this); }

 private:
  static constexpr size_t kHeavyStore = 1;

  void evict(std::span<HeadBody> bodies) {
    std::vector<Leaving> leaving(bodies.size(), Leaving(context_.memory));
    std::vector<NewRows> rows(bodies.size());
    context_.pool.parallel_for(bodies.size(), [&](size_t h, int) {
      rows[h] = take_lightest(bodies[h].store(kHeavyStore), leaving[h]);
    });
    held_ = sizes_.budget;
    inner_->ingest(bodies, rows);
  }

  /// Of equal mass the older rows go: the newer have had less time to earn one.
  NewRows take_lightest(RowStore& store, Leaving& out) const {
    const std::span<const float> mass = store.mass();
    std::vector<uint32_t> order(store.rows());
    std::iota(order.begin(), order.end(), 0u);
    const auto cut = order.begin() + static_cast<ptrdiff_t>(sizes_.interval);
    std::nth_element(order.begin(), cut - 1, order.end(), [&](uint32_t a, uint32_t b) {
      return mass[a] != mass[b] ? mass[a] < mass[b] : a < b;
    });
    std::sort(order.begin(), cut);
    std::sort(cut, order.end());
    out.k.resize(sizes_.interval * dim_);
    out.v.resize(sizes_.interval * dim_);
    for (size_t i = 0; i < sizes_.interval; ++i) {
      store.read(out.k.data() + i * dim_, out.v.data() + i * dim_, order[i], 1);
      out.positions.push_back(store.position(order[i]));
      out.mass.push_back(mass[order[i]]);
    }
    store.keep({cut, order.end()});
    return {out.k.data(),    out.v.data(),        dim_, sizes_.interval, out.positions[0],
            out.mass.data(), out.positions.data()};
  }

  Context context_;
  size_t dim_;  // D
  HeavySizes sizes_;
  std::unique_ptr<Selector> inner_;
  size_t held_ = 0;  ///< rows in each heavy store
};

}  // namespace

Fields HeavyOptions::fields() {
  return {rows("heavy", heavy,
               "body rows kept beside the others, with weight 1, for their recent attention mass; "
               "none by default"),
          whole("heavy_interval", interval, {.least = 1},
                "rows by which the heavy may outgrow their budget")
              .when(heavy.has_value()),
          whole("heavy_queries", queries, {.least = 1}, "last queries whose attention counts")
              .when(heavy.has_value())};
}

std::optional<HeavySizes> HeavyOptions::sizes(const BudgetSite& site) const {
  if (!heavy) return std::nullopt;
  return HeavySizes{site.rows(*heavy, "heavy"), interval, queries};
}

HeavyOptions HeavyOptions::at(const BudgetSite& site) const {
  HeavyOptions o = *this;
  if (heavy) o.heavy = Budget::rows(site.rows(*heavy, "heavy"));
  return o;
}

std::unique_ptr<Selector> with_heavy(const SelectorRequest& r, const HeavyOptions& options,
                                     std::unique_ptr<Selector> inner) {
  const auto sizes = options.sizes(r.budget);
  if (!sizes) return inner;
  return std::make_unique<Heavy>(r.context, r.site, *sizes, std::move(inner));
}

}  // namespace pith
