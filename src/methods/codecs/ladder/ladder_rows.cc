#include "methods/codecs/ladder/ladder_rows.h"

#include <algorithm>
#include <numeric>

#include "plan/ageing.h"
#include "rows/cpu/waiting_rows.h"

namespace pith {

/// The share of one store in a run of rows.
struct LadderRows::Part {
  const CodedRows* rows = nullptr;
  size_t first = 0, count = 0;  // in the store
  size_t at = 0;                // of the run's first row
  bool young = false;
};

LadderRows::LadderRows(const Kernels& kernels, std::unique_ptr<CodedRows> old_rows,
                       std::unique_ptr<CodedRows> young, size_t young_rows)
    : CodedRows(kernels, young->dim()),
      old_(std::move(old_rows)),
      young_(std::move(young)),
      young_rows_(young_rows) {}

std::vector<LadderRows::Part> LadderRows::parts(size_t first, size_t count) const {
  const size_t bound = std::clamp(old_->rows(), first, first + count);
  std::vector<Part> out;
  if (bound > first) out.push_back({old_.get(), first, bound - first, 0, false});
  if (first + count > bound)
    out.push_back({young_.get(), bound - old_->rows(), first + count - bound, bound - first, true});
  return out;
}

void LadderRows::append(const float* x, size_t stride, size_t count) {
  for (size_t t = 0; t < count;) {
    const size_t n = std::min(count - t, young_rows_ + kStep - young_->rows());
    young_->append(x + t * stride, stride, n);
    t += n;
    if (Ageing{young_rows_, kStep}.due(young_->rows()) > 0) age();
  }
}

void LadderRows::age() {
  std::vector<float> rows(kStep * dim_);
  young_->decode(rows.data(), 0, kStep);
  old_->append(rows.data(), dim_, kStep);
  std::vector<uint32_t> stay(young_->rows() - kStep);
  std::iota(stay.begin(), stay.end(), static_cast<uint32_t>(kStep));
  young_->keep(stay);
}

void LadderRows::keep(std::span<const uint32_t> kept) {
  const auto bound = static_cast<uint32_t>(old_->rows());
  const auto stay =
      static_cast<size_t>(std::lower_bound(kept.begin(), kept.end(), bound) - kept.begin());
  std::vector<uint32_t> young(kept.begin() + static_cast<ptrdiff_t>(stay), kept.end());
  for (uint32_t& t : young) t -= bound;
  old_->keep(kept.first(stay));
  young_->keep(young);
}

void LadderRows::decode(float* out, size_t first, size_t count) const {
  for (const Part& p : parts(first, count)) p.rows->decode(out + p.at * dim_, p.first, p.count);
}

void LadderRows::prepare(float* prepared, const float* q, size_t queries) const {
  old_->prepare(prepared, q, queries);
  young_->prepare(prepared + old_->prepared_size(queries), q, queries);
}

void LadderRows::scores(float* out, size_t ld, const float* q, const float* prepared,
                        size_t queries, size_t first, size_t count, float scale) const {
  for (const Part& p : parts(first, count))
    p.rows->scores(out + p.at, ld, q, prepared + (p.young ? old_->prepared_size(queries) : 0),
                   queries, p.first, p.count, scale);
}

void LadderRows::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                            size_t count) const {
  const size_t width = accumulator_width();
  std::vector<float> sums;
  for (const Part& part : parts(first, count)) {
    const size_t own = part.rows->accumulator_width();
    sums.assign(queries * own, 0.0f);
    part.rows->accumulate(sums.data(), p + part.at, ld, queries, part.first, part.count);
    for (size_t m = 0; m < queries; ++m)
      kernels_->add(acc + m * width + (part.young ? old_->accumulator_width() : 0),
                    sums.data() + m * own, own);
  }
}

void LadderRows::finish(float* out, const float* acc, size_t queries) const {
  const size_t width = accumulator_width();
  std::vector<float> sums;
  size_t from = 0;
  for (const CodedRows* rows : {old_.get(), young_.get()}) {
    const size_t own = rows->accumulator_width();
    sums.resize(queries * own);
    for (size_t m = 0; m < queries; ++m)
      std::copy_n(acc + m * width + from, own, sums.data() + m * own);
    rows->finish(out, sums.data(), queries);
    from += own;
  }
}

size_t LadderCodec::block_rows() const {
  return std::lcm(std::lcm(old_->block_rows(), young_->block_rows()), kWaitingBlock);
}

double LadderCodec::most_bytes(size_t rows, size_t dim, bool evicted) const {
  // A body has two stores at most. How rows are shared out depends on which were dropped.
  const size_t young = std::min(rows, (evicted ? 2 : 1) * (young_rows_ + LadderRows::kStep));
  const size_t old_rows = evicted ? rows : rows - std::min(rows, young_rows_);
  return young_->most_bytes(young, dim, true) + old_->most_bytes(old_rows, dim, evicted);
}

size_t LadderCodec::coding_bytes(const RowsRequest& request, size_t rows) const {
  return std::max(young_->coding_bytes(request, rows),
                  old_->coding_bytes(request, LadderRows::kStep));
}

std::unique_ptr<CodedRows> LadderCodec::make_rows(const Context& context,
                                                  const RowsRequest& request) const {
  RowsRequest young = request;
  if (young.max_rows) young.max_rows = std::min(young.max_rows, young_rows_ + LadderRows::kStep);
  return std::make_unique<LadderRows>(context.kernels, old_->make_rows(context, request),
                                      young_->make_rows(context, young), young_rows_);
}

}  // namespace pith
