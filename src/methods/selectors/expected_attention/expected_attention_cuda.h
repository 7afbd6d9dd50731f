#pragma once
// expected_attention's kernels: the statistics of queries, and the scores of rows. State, for each
// query head: the mean of queries before RoPE [D], the mean of the last chunk's [D], and the
// scatter [D, D], where the covariance counts.
//
// Cost: a token reads and writes the scatter once, a chunk of T queries takes 2 T D^2 operations
// per query head, a selection 2 D^2 for each row and query head.

#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

inline size_t expected_state_numbers(size_t query_heads, size_t dim, bool covariance) {
  return query_heads * dim * (2 + (covariance ? dim : 0));
}

void observe_token_queries(const StepQueries& queries, const QueryNote* note, bool covariance,
                           cudaStream_t stream);
void observe_chunk_queries(const StepQueries& queries, const QueryNote& note, bool covariance,
                           cudaStream_t stream);

/// The RoPE averaged over the coming positions: pair i is turned by cos[i], sin[i].
struct AverageTurn {
  float cos[128], sin[128];
};
struct ExpectedScores {
  AverageTurn turn;
  float scale = 0;  ///< of q.k
  bool covariance = true, vnorm = true;
  double epsilon = 0;
};
void score_expected(const SelectSpace& space, const CandidateRows& rows, const ExpectedScores& how,
                    cudaStream_t stream);

}  // namespace pith::cuda
