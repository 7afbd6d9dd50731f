#include "tools/dictionaries/train.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/dtype.h"
#include "core/philox.h"
#include "methods/codecs/csr/kmeans.h"

namespace pith {
namespace {

constexpr uint32_t kRowsDraw = 0x5444, kGaussianDraw = 0x5445, kEpochDraw = 0x5500;
constexpr size_t kClusteredRows = 65536;  // k-means sees at most this many

std::vector<float> normal_numbers(size_t n, uint64_t seed) {
  const Philox random(seed, 0, 0);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const auto words = random.words(i, kGaussianDraw);
    const float u = (static_cast<float>(words[0] >> 8) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(words[1] >> 8) * 0x1p-24f;
    x[i] = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi_v<float> * v);
  }
  return x;
}

class Trainer {
 public:
  Trainer(const Kernels& kernels, MemoryCounter& memory, const TrainRows& rows,
          const TrainOptions& options)
      : kernels_(kernels),
        memory_(memory),
        rows_(rows),
        options_(options),
        count_(options.atoms),
        dim_(rows.dim),
        learnt_(rows.count - rows.held_out) {}

  void start();
  void epoch(size_t number);
  double validation() const {
    const TrainRows held{rows_.x + learnt_ * dim_, rows_.held_out, dim_, 0};
    return coding_loss(kernels_, memory_, held, halves_, options_.code);
  }
  std::vector<uint16_t> atoms() const { return halves_; }

 private:
  void round_atoms();
  double add_error_gradient(const std::vector<uint32_t>& order, size_t first, size_t n);
  void add_diversity_gradient(double loss);
  void step(float rate);

  const Kernels& kernels_;
  MemoryCounter& memory_;
  const TrainRows& rows_;
  const TrainOptions& options_;
  size_t count_, dim_, learnt_;
  std::vector<float> atoms_;                     // [N, d]
  std::vector<uint16_t> halves_;                 // [N, d]
  std::vector<float> gradient_, mean_, spread_;  // [N, d]
  std::vector<float> columns_, gram_;            // [d, N], [N, N]
  size_t steps_ = 0;
};

void Trainer::start() {
  using Method = TrainOptions::Method;
  if (options_.method == Method::kGaussian) {
    atoms_ = normal_numbers(count_ * dim_, options_.seed);
  } else if (options_.method == Method::kRows) {
    atoms_.resize(count_ * dim_);
    const auto order = random_order(learnt_, count_, options_.seed, kRowsDraw);
    for (size_t n = 0; n < count_; ++n)
      std::copy_n(rows_.x + order[n] * dim_, dim_, atoms_.data() + n * dim_);
  } else {
    atoms_ = kmeans(kernels_, rows_.x, std::min(learnt_, kClusteredRows), dim_,
                    {count_, 10, options_.seed});
  }
  normalise_rows(kernels_, atoms_.data(), count_, dim_);
  round_atoms();
  gradient_.resize(atoms_.size());
  mean_.resize(atoms_.size());
  spread_.resize(atoms_.size());
}

void Trainer::round_atoms() {
  halves_.resize(atoms_.size());
  for (size_t i = 0; i < atoms_.size(); ++i) halves_[i] = f32_to_f16(atoms_[i]);
}

double Trainer::add_error_gradient(const std::vector<uint32_t>& order, size_t first, size_t n) {
  const size_t pairs = options_.code.pairs;
  const AtomRows table{halves_.data(), count_, nullptr, dim_};
  std::vector<float> x(n * dim_), left(n * dim_);
  for (size_t i = 0; i < n; ++i)
    std::copy_n(rows_.x + order[first + i] * dim_, dim_, x.data() + i * dim_);
  std::vector<uint16_t> indices(n * pairs), coefficients(n * pairs);
  Pursuit pursuit(kernels_, memory_, table, count_);
  pursuit.code(indices.data(), coefficients.data(), x.data(), n, options_.code);
  kernels_.sum_atoms(left.data(), {indices.data(), coefficients.data(), pairs, 1}, table, n);
  kernels_.scale(left.data(), -1, left.size());
  kernels_.add(left.data(), x.data(), left.size());
  const float scale = -2 / static_cast<float>(n * dim_);
  double loss = 0;
  for (size_t i = 0; i < n; ++i) {
    const float* row = left.data() + i * dim_;
    loss += kernels_.dot(row, row, dim_);
    for (size_t j = i * pairs; j < (i + 1) * pairs; ++j)
      kernels_.axpy(gradient_.data() + indices[j] * dim_, row, scale * f16_to_f32(coefficients[j]),
                    dim_);
  }
  return loss / static_cast<double>(n * dim_);
}

// L_div = |I - A A^T|^2 / N^2 for atoms A [N, d]; its gradient is 4 (A A^T - I) A / N^2.
void Trainer::add_diversity_gradient(double loss) {
  columns_.resize(count_ * dim_);
  gram_.resize(count_ * count_);
  kernels_.transpose_rows(columns_.data(), count_, {atoms_.data(), DType::kF32, dim_}, count_);
  kernels_.gemm(
      {gram_.data(), count_, atoms_.data(), dim_, columns_.data(), count_, count_, count_, dim_});
  for (size_t n = 0; n < count_; ++n) gram_[n * count_ + n] -= 1;
  double squares = 0;
  for (size_t n = 0; n < count_; ++n)
    squares += kernels_.dot(gram_.data() + n * count_, gram_.data() + n * count_, count_);
  const double norm = static_cast<double>(count_) * static_cast<double>(count_);
  const double beta = std::min(double{options_.diversity} * loss / (squares / norm), 1.0);
  kernels_.scale(gram_.data(), static_cast<float>(4 * beta / norm), gram_.size());
  kernels_.gemm({gradient_.data(), dim_, gram_.data(), count_, atoms_.data(), dim_, count_, dim_,
                 count_, /*accumulate=*/true});
}

void Trainer::step(float rate) {
  constexpr float kMean = 0.9f, kSpread = 0.999f, kTiny = 1e-8f;
  ++steps_;
  const float mean_scale = 1 / (1 - std::pow(kMean, static_cast<float>(steps_)));
  const float spread_scale = 1 / (1 - std::pow(kSpread, static_cast<float>(steps_)));
  for (size_t i = 0; i < atoms_.size(); ++i) {
    mean_[i] = kMean * mean_[i] + (1 - kMean) * gradient_[i];
    spread_[i] = kSpread * spread_[i] + (1 - kSpread) * gradient_[i] * gradient_[i];
    atoms_[i] -= rate * mean_[i] * mean_scale / (std::sqrt(spread_[i] * spread_scale) + kTiny);
  }
  normalise_rows(kernels_, atoms_.data(), count_, dim_);
  round_atoms();
}

void Trainer::epoch(size_t number) {
  const auto order = random_order(learnt_, learnt_, options_.seed,
                                  kEpochDraw + static_cast<uint32_t>(number % 4096));
  const size_t batches = (learnt_ + options_.batch - 1) / options_.batch;
  for (size_t b = 0; b < batches; ++b) {
    const size_t first = b * options_.batch;
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    const double loss = add_error_gradient(order, first, std::min(options_.batch, learnt_ - first));
    if (options_.diversity > 0) add_diversity_gradient(loss);
    const float done =
        static_cast<float>(number * batches + b) / static_cast<float>(options_.epochs * batches);
    step(options_.rate * (1 - done));
  }
}

}  // namespace

double coding_loss(const Kernels& kernels, MemoryCounter& memory, const TrainRows& rows,
                   const std::vector<uint16_t>& atoms, const Pursuit::Shape& code) {
  constexpr size_t kBlock = 1024;
  const size_t dim = rows.dim, count = atoms.size() / dim;
  const AtomRows table{atoms.data(), count, nullptr, dim};
  Pursuit pursuit(kernels, memory, table, count);
  std::vector<uint16_t> indices(kBlock * code.pairs), coefficients(kBlock * code.pairs);
  std::vector<float> built(kBlock * dim);
  double squares = 0;
  for (size_t t = 0; t < rows.count; t += kBlock) {
    const size_t n = std::min(kBlock, rows.count - t);
    const float* x = rows.x + t * dim;
    pursuit.code(indices.data(), coefficients.data(), x, n, code);
    kernels.sum_atoms(built.data(), {indices.data(), coefficients.data(), code.pairs, 1}, table, n);
    for (size_t i = 0; i < n * dim; ++i) squares += std::pow(double{x[i]} - built[i], 2.0);
  }
  return squares / static_cast<double>(rows.count * dim);
}

TrainResult train_atoms(const Kernels& kernels, MemoryCounter& memory, const TrainRows& rows,
                        const TrainOptions& options, const std::function<bool()>& go_on) {
  Trainer trainer(kernels, memory, rows, options);
  TrainResult result;
  const float* held = rows.x + (rows.count - rows.held_out) * rows.dim;
  for (size_t i = 0; i < rows.held_out * rows.dim; ++i) result.power += double{held[i]} * held[i];
  result.power /= static_cast<double>(std::max<size_t>(1, rows.held_out * rows.dim));
  trainer.start();
  result.losses.push_back(trainer.validation());
  const size_t epochs = options.method == TrainOptions::Method::kNeural ? options.epochs : 0;
  for (size_t e = 0; e < epochs; ++e) {
    if (go_on && !go_on()) return result;
    trainer.epoch(e);
    result.losses.push_back(trainer.validation());
  }
  result.atoms = trainer.atoms();
  return result;
}

}  // namespace pith
