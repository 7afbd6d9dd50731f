#pragma once
// Logits from where a forward pass left off: the final norm and the product with the head's matrix.
// Cost per row: 2 flops a weight.

#include <functional>
#include <span>
#include <vector>

#include "core/memory.h"
#include "kernels/matmul.h"
#include "model/loaders/weights.h"
#include "pith/model.h"

namespace pith {

/// out [hidden] <- the residual stream x of a token as what has this norm reads it.
void normalise(float* out, const std::vector<float>& norm, const float* x, const Kernels& kernels,
               const ModelConfig& config);

class [[gnu::visibility("hidden")]] LogitHead;  // as the weights that it holds
class LogitHead {
 public:
  /// Its buffer is counted as kScratch. All arguments must outlive it; `most_rows`: see most().
  LogitHead(const Context& context, const Model& model, size_t most_rows, Matmul& matmul);

  /// Logits [count, V] after `states`, each [hidden]; valid until the next call of anything here.
  /// At most most() of them. Whether they are finite is the caller's to ask, row by row.
  const float* after(std::span<const float* const> states);
  size_t most() const;
  /// Makes room for logits after so many states. Throws kOutOfMemory.
  void prepare(size_t states);
  /// Throws kNonFinite if any of logits [count, V] is not finite.
  void check_finite(const float* logits, size_t count) const;
  /// Hands out the logits [count, V] after states [T, hidden], a block at a time; `first` counts
  /// from 0. Throws kNonFinite.
  using Sink = std::function<void(size_t first, size_t count, const float* logits)>;
  void all(std::span<const float> states, const Sink& sink);
  /// Logits [V] after the last of these; valid as after()'s. Throws kNonFinite.
  std::span<const float> last(std::span<const float> states);

 private:
  void make_room(size_t states);
  /// logits_ [count, V] <- those of rows that `row` makes.
  const float* make(size_t count, RowSource row, RowsOf rows);
  size_t hidden() const { return static_cast<size_t>(config_.hidden); }
  size_t vocabulary() const { return static_cast<size_t>(config_.vocab); }

  Context context_;
  const Model::Weights& weights_;
  const ModelConfig& config_;
  size_t most_rows_;
  Matmul& matmul_;
  Array<float> logits_;  // [block, V]
};

}  // namespace pith
