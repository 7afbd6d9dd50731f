#include "methods/codecs/csr/pursuit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/allocation.h"
#include "core/dtype.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kBlock = 32;       // rows whose correlations are at hand
constexpr size_t kGramRows = 32;    // of one allocation
constexpr size_t kMostGram = 1024;  // atoms whose whole Gram matrix is made, 4 MiB of it
constexpr uint32_t kNone = 0xFFFFFFFF;
// An atom whose part outside the span of those chosen is smaller than this (squared) adds nothing
// but rounding.
constexpr float kDependent = 1e-5f;

}  // namespace

Pursuit::Pursuit(const Kernels& kernels, MemoryCounter& memory, const AtomRows& atoms, size_t count)
    : kernels_(kernels),
      memory_(memory),
      count_(count),
      dim_(atoms.dim),
      columns_(memory, MemoryKind::kScratch),
      all_gram_(memory, MemoryKind::kScratch),
      gram_of_(count, kNone),
      correlations_(memory, MemoryKind::kScratch),
      rest_(memory, MemoryKind::kScratch),
      atom_(atoms.dim) {
  columns_.resize(dim_ * count_);
  const size_t split = std::min(atoms.split, count_);
  if (split > 0)
    kernels_.transpose_rows(columns_.data(), count_, {atoms.first, DType::kF16, dim_}, split);
  if (count_ > split)
    kernels_.transpose_rows(columns_.data() + split, count_, {atoms.second, DType::kF16, dim_},
                            count_ - split);
  correlations_.resize(kBlock * count_);
  rest_.resize(count_);
}

size_t Pursuit::scratch(size_t count, size_t dim, size_t pairs) {
  const auto floats = [](size_t n) { return grown_bytes(n * sizeof(float)); };
  const size_t blocks = (std::min(pairs, count) + kGramRows - 1) / kGramRows;
  const size_t all = count <= kMostGram ? floats(count * count) : 0;
  return floats(dim * count) + floats(kBlock * count) + floats(count) +
         std::max(all, blocks * floats(kGramRows * count));
}

void Pursuit::make_gram() {
  std::vector<float> rows(count_ * dim_);
  for (size_t c = 0; c < dim_; ++c)
    for (size_t n = 0; n < count_; ++n) rows[n * dim_ + c] = columns_[c * count_ + n];
  all_gram_.resize(count_ * count_);
  kernels_.gemm(
      {all_gram_.data(), count_, rows.data(), dim_, columns_.data(), count_, count_, count_, dim_});
}

const float* Pursuit::gram_row(size_t atom) {
  if (!all_gram_.empty()) return all_gram_.data() + atom * count_;
  uint32_t& row = gram_of_[atom];
  const bool known = row != kNone;
  if (!known) {
    if (gram_rows_ % kGramRows == 0) {
      gram_.emplace_back(memory_, MemoryKind::kScratch);
      gram_.back().resize(kGramRows * count_);
    }
    row = static_cast<uint32_t>(gram_rows_++);
  }
  float* g = gram_[row / kGramRows].data() + row % kGramRows * count_;
  if (known) return g;
  for (size_t c = 0; c < dim_; ++c) atom_[c] = columns_[c * count_ + atom];
  GemmF32 product{g, count_, atom_.data(), dim_, columns_.data(), count_, 1, count_, dim_};
  kernels_.gemm(product);
  return g;
}

size_t Pursuit::largest(float* correlations) const {
  return kernels_.add_find_largest(correlations, correlations, 0, count_);
}

void Pursuit::pursue(Chosen& chosen, float* correlations, size_t pairs) {
  size_t best = largest(correlations);
  for (size_t step = 0; step < pairs; ++step) {
    if (correlations[best] == 0) return;
    const float* g = gram_row(best);
    const float coefficient = correlations[best] / g[best];
    size_t slot = 0;
    while (slot < chosen.count && chosen.atoms[slot] != best) ++slot;
    if (slot == chosen.count) {
      chosen.atoms[slot] = best;
      chosen.coefficients[slot] = 0;
      ++chosen.count;
    }
    chosen.coefficients[slot] += coefficient;
    if (step + 1 < pairs) best = kernels_.add_find_largest(correlations, g, -coefficient, count_);
  }
}

// With I the atoms chosen, G_II = L L^T grows by a row a step; the coefficients solve
// G_II c = (D^T x)_I and the residual's correlations are D^T x - G_I c.
void Pursuit::pursue_orthogonal(Chosen& chosen, const float* correlations, size_t pairs) {
  constexpr size_t kMost = SparseRows::kMaxPairs;
  float lower[kMost][kMost];
  const float* gram[kMost];
  std::copy_n(correlations, count_, rest_.data());
  size_t best = largest(rest_.data());
  for (size_t k = 0; k < pairs; ++k) {
    const bool again = std::find(chosen.atoms, chosen.atoms + k, best) != chosen.atoms + k;
    if (rest_[best] == 0 || again) return;
    gram[k] = gram_row(best);
    float* row = lower[k];
    float left = gram[k][best];
    for (size_t i = 0; i < k; ++i) {
      float sum = gram[k][chosen.atoms[i]];
      for (size_t j = 0; j < i; ++j) sum -= row[j] * lower[i][j];
      row[i] = sum / lower[i][i];
      left -= row[i] * row[i];
    }
    if (!(left > kDependent)) return;
    row[k] = std::sqrt(left);
    chosen.atoms[k] = best;
    chosen.count = k + 1;
    float* c = chosen.coefficients;
    for (size_t i = 0; i <= k; ++i) {
      float sum = correlations[chosen.atoms[i]];
      for (size_t j = 0; j < i; ++j) sum -= lower[i][j] * c[j];
      c[i] = sum / lower[i][i];
    }
    for (size_t i = k + 1; i-- > 0;) {
      for (size_t j = i + 1; j <= k; ++j) c[i] -= lower[j][i] * c[j];
      c[i] /= lower[i][i];
    }
    if (k + 1 == pairs) return;
    std::copy_n(correlations, count_, rest_.data());
    for (size_t i = 0; i < k; ++i) kernels_.axpy(rest_.data(), gram[i], -c[i], count_);
    best = kernels_.add_find_largest(rest_.data(), gram[k], -c[k], count_);
  }
}

void Pursuit::code(uint16_t* indices, uint16_t* coefficients, const float* x, size_t rows,
                   const Shape& shape) {
  const bool many = rows * shape.pairs >= 2 * count_ && count_ <= kMostGram;
  if (many && all_gram_.empty()) make_gram();
  for (size_t t = 0; t < rows; t += kBlock) {
    const size_t n = std::min(kBlock, rows - t);
    kernels_.gemm({correlations_.data(), count_, x + t * dim_, dim_, columns_.data(), count_, n,
                   count_, dim_});
    for (size_t r = 0; r < n; ++r) {
      Chosen chosen;
      float* row = correlations_.data() + r * count_;
      if (shape.solver == Solver::kMp)
        pursue(chosen, row, shape.pairs);
      else
        pursue_orthogonal(chosen, row, shape.pairs);
      for (size_t i = 0; i < shape.pairs; ++i, ++indices, ++coefficients) {
        const bool used = i < chosen.count;
        const float c = used ? chosen.coefficients[i] : 0;
        if (!(std::abs(c) <= 65504))
          throw Error(ErrorCode::kNonFinite,
                      fmt::format("csr: a coefficient of {} does not fit f16; {}", c,
                                  std::isfinite(c) ? "use bf16 or f32 rows for this model"
                                                   : "the model's activations are not finite"));
        *indices = static_cast<uint16_t>(used ? chosen.atoms[i] : 0);
        *coefficients = f32_to_f16(c);
      }
    }
  }
}

}  // namespace pith
