#pragma once
// NeuralDict (Zhang et al. 2024): atoms are the weights of a linear layer that rebuilds rows from
// the codes that matching pursuit finds over them; Adam on the squared error and a term that keeps
// atoms apart, unit norm restored after each step. Codes count as constants in the gradient. The
// atoms that rows are coded with are the f16 ones that the file will hold.

#include <functional>
#include <string>
#include <vector>

#include "methods/codecs/csr/pursuit.h"

namespace pith {

/// Rows of one dictionary; the last ones are for validation alone.
struct TrainRows {
  const float* x = nullptr;  // [count, dim]
  size_t count = 0, dim = 0;
  size_t held_out = 0;  ///< of count
};

struct TrainOptions {
  enum class Method : uint8_t {
    kNeural,   ///< all of it
    kKMeans,   ///< the centroids that training begins with
    kRows,     ///< random rows
    kGaussian  ///< random directions
  };
  Method method = Method::kNeural;
  size_t atoms = 256;
  Pursuit::Shape code{8, Solver::kMp};
  size_t epochs = 20;
  size_t batch = 256;
  float rate = 0.015f;     ///< Adam's, falling linearly to 0
  float diversity = 0.1f;  ///< beta = min(diversity MSE / L_div, 1); 0 leaves the term out
  uint64_t seed = 0;
};

struct TrainResult {
  std::vector<uint16_t> atoms;  // [atoms, dim] f16
  /// Squared error a channel of the rows held out, before training and after each epoch; and what
  /// the rows themselves amount to.
  std::vector<double> losses;
  double power = 0;
};

/// Returns early with no atoms if `go_on` says no; it is asked between epochs and may be empty.
TrainResult train_atoms(const Kernels& kernels, MemoryCounter& memory, const TrainRows& rows,
                        const TrainOptions& options, const std::function<bool()>& go_on = {});

/// Mean squared error a channel of rows x [count, dim] coded over the atoms [atoms, dim] f16.
double coding_loss(const Kernels& kernels, MemoryCounter& memory, const TrainRows& rows,
                   const std::vector<uint16_t>& atoms, const Pursuit::Shape& code);

}  // namespace pith
