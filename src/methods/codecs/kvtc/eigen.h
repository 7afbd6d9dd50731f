#pragma once
// Eigenvectors of a symmetric matrix: Householder reflections to three diagonals, then QR steps
// with Wilkinson's shift (Golub and Van Loan, Matrix Computations, 8.3). Cost: about 6 n^3.

#include <cstddef>
#include <vector>

namespace pith {

struct Eigen {
  std::vector<double> values;   // [n], largest first
  std::vector<double> vectors;  // [n, n], vector i is row i, of length 1
};

/// Of `matrix` [n, n], symmetric and finite. In one order of operations, whatever the threads.
Eigen eigen_of(std::vector<double> matrix, size_t n);

}  // namespace pith
