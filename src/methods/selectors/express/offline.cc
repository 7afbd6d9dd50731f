// Express with all rows at hand ("Express Language Modeling", App. H).

#include <algorithm>
#include <cmath>

#include "methods/selectors/express/express.h"

namespace pith {
namespace {

// It visits blocks in order and, inside a block, levels from the bottom; buckets of a level are
// independent of one another.

/// Rows of one weight, as numbers into the input.
using Rows = std::vector<size_t>;

class Offline {
 public:
  Offline(const Context& context, const ExpressRule& rule, const OfflineRows& rows,
          const Philox& random)
      : context_(context), rule_(rule), rows_(rows), random_(random) {}

  Coreset run() {
    const ExpressShape& shape = rule_.shape;
    uint64_t tau = 1;
    Rows coreset;
    size_t next = std::min<size_t>(rows_.rows, shape.target);
    for (size_t i = 0; i < next; ++i) coreset.push_back(i);
    std::vector<std::pair<Rows, uint64_t>> waiting;  // newest first
    while (next < rows_.rows) {
      if (coreset.size() == shape.target)
        for (int twice = 0; twice < 2; ++twice, tau *= 2)
          coreset = halve_buckets(coreset, coreset.size(), tau);
      const size_t end = std::min<uint64_t>(rows_.rows, next + tau * shape.quarter());
      waiting = thin(next, end, tau);
      if (end - next == tau * shape.quarter()) {
        coreset.insert(coreset.end(), waiting.back().first.begin(), waiting.back().first.end());
        waiting.clear();
      }
      next = end;
    }
    Coreset out;
    append(out, coreset, tau);
    for (auto it = waiting.rbegin(); it != waiting.rend(); ++it) append(out, it->first, it->second);
    return out;
  }

 private:
  void append(Coreset& out, const Rows& rows, uint64_t weight) const {
    for (size_t r : rows) {
      out.positions.push_back(rows_.first_position + static_cast<int64_t>(r));
      out.weights.push_back(weight);
    }
  }

  /// The rows of a block that stay, level by level: the unfinished stratum first.
  std::vector<std::pair<Rows, uint64_t>> thin(size_t first, size_t end, uint64_t tau) const {
    const uint64_t ratio = rule_.shape.ratio(tau), size = tau / ratio;
    std::vector<std::pair<Rows, uint64_t>> out;
    Rows level;
    for (size_t at = first; at < end; at += size) {
      const size_t stop = std::min<size_t>(end, at + size);
      size_t pick = at;
      for (size_t i = at; i < stop; ++i)
        if (becomes_pick(random_, rows_.first_position + static_cast<int64_t>(i), kStratumTag,
                         i - at + 1))
          pick = i;
      if (stop - at == size)
        level.push_back(pick);
      else
        out.push_back({{pick}, stop - at});
    }
    size_t bucket = rule_.shape.target / ratio;
    uint64_t weight = size;
    for (uint64_t r = ratio; r > 1; r /= 2, bucket *= 2, weight *= 2) {
      const size_t full = level.size() / bucket * bucket;
      out.push_back({Rows(level.begin() + static_cast<ptrdiff_t>(full), level.end()), weight});
      level.resize(full);
      level = halve_buckets(level, bucket, weight);
    }
    out.push_back({level, weight});
    return out;
  }

  /// Halves each run of `bucket` rows.
  Rows halve_buckets(const Rows& level, size_t bucket, uint64_t weight) const {
    const size_t buckets = level.size() / bucket;
    Rows out(level.size() / 2);
    context_.pool.parallel_for(buckets, [&](size_t b, int) {
      const size_t* in = level.data() + b * bucket;
      Array<float> k(context_.memory, MemoryKind::kScratch);
      Array<float> v(context_.memory, MemoryKind::kScratch);
      k.resize(bucket * rows_.dim);
      v.resize(bucket * rows_.dim);
      std::vector<int64_t> positions(bucket);
      for (size_t i = 0; i < bucket; ++i) {
        std::copy_n(rows_.k + in[i] * rows_.dim, rows_.dim, k.data() + i * rows_.dim);
        std::copy_n(rows_.v + in[i] * rows_.dim, rows_.dim, v.data() + i * rows_.dim);
        positions[i] = rows_.first_position + static_cast<int64_t>(in[i]);
      }
      const Halved halved = halve(context_.kernels, context_.memory, rule_.halving,
                                  {k.data(), v.data(), positions.data(), bucket, rows_.dim},
                                  {random_, log2_of(weight)});
      for (size_t i = 0; i < bucket / 2; ++i) out[b * bucket / 2 + i] = in[halved.kept[i]];
    });
    return out;
  }

  const Context& context_;
  const ExpressRule& rule_;
  const OfflineRows& rows_;
  Philox random_;
};

}  // namespace

Coreset express_offline(const Context& context, const ExpressRule& rule, const OfflineRows& rows,
                        const Philox& random) {
  return Offline(context, rule, rows, random).run();
}

}  // namespace pith
