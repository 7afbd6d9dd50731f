#pragma once
// The directions that kvtc finds of a head's first rows, and the bits that each gets, on every
// device.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"

namespace pith {

/// bits [n] <- up to 8 to each of numbers of these variances, `total` in all: each where it takes
/// most of the squared error away.
std::vector<uint8_t> bits_by_variance(const std::vector<double>& variances, size_t total);

/// Variances [D] that later rows have along eigenvectors of `rows` [n, D], n of 2 and more, the
/// largest first: those of each quarter along vectors of the other three, around their mean. Those
/// of the rows themselves are too small for all but the first few, above all where rows are as few
/// as channels. Directions that three quarters lack share what is left.
std::vector<double> later_variances(const std::vector<double>& rows, size_t dim, ThreadPool& pool);

/// codes [D/2] <- weights of RoPE's pairs by the queries' energy in them [D/2], as tight scales:
/// its roots, whose mean is 1. Nothing for no energy at all.
std::vector<uint8_t> pair_weights(std::span<const float> energy);

/// [D] <- of each channel; of no codes, 1.
std::vector<float> channel_weights(std::span<const uint8_t> codes, size_t dim);

/// Of R coordinates, the largest variance first.
struct TransformTables {
  std::vector<uint8_t> bits;      // [R], none 0 and none more than the one before
  std::vector<float> deviations;  // [R], within f16
  std::vector<float> vectors;     // [R, D] of length 1
};

/// Of rows [n, D] around `mean` [D] times `weights` [D], of which the codes of one may have so many
/// bits. Cost: 5 times n D^2 + 6 D^3 multiply-adds in f64, four of them side by side.
TransformTables find_transform(const std::vector<float>& rows, const std::vector<float>& mean,
                               const std::vector<float>& weights, size_t code_bits,
                               ThreadPool& pool);

}  // namespace pith
