#pragma once
// Heads that share a budget (AdaKV) on the GPU: which rows of a layer stay, and how many of each
// head, which only the device knows. Rows that stay lie one head's behind the other's.
//
// Cost of a selection among R rows of all heads: 8 passes over R keys of 4 bytes for each head and
// 4 more over its own; what stays is read and written once, where scores look at rows all R too.

#include <cuda_runtime_api.h>

#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

/// space.kept <- the numbers of the rows of each ragged head that stay, ascending, and space.stay
/// how many: `least` of each head with the largest keys, then of all other rows those with the
/// largest, `keep` together. Of equal keys the newer rows stay, of equally new ones the first
/// head's. The keys are written over.
struct SharedChoice {
  int keep = 0, least = 0;
};
void choose_shared(const SelectSpace& space, const CandidateRows& rows, const SharedChoice& choice,
                   cudaStream_t stream);

/// Numbers of rows [heads] and where each head's begin: from + more of each. Heads begin at
/// multiples of `unit` rows.
struct PlaceCall {
  const int32_t* from = nullptr;
  int more = 0, heads = 0, unit = 1;
  int32_t *rows = nullptr, *begins = nullptr;  // [heads]
};
void place_heads(const PlaceCall& call, cudaStream_t stream);

/// Each head has rows that were there and fresh ones behind them. They go to `to`, or those named
/// in `kept` do, where the numbers of a head begin as `named` says.
struct LineUpCall {
  CandidateRows held, fresh;
  const int32_t* kept = nullptr;
  RaggedHeads named = {}, to = {};
  void *k = nullptr, *v = nullptr;  // [rows of all heads, D], or null
  int32_t* positions = nullptr;     // likewise
  float* mass = nullptr;            // likewise
  float mass_factor = 1;
};
void line_up(const LineUpCall& call, cudaStream_t stream);

/// The same for codes, which move by lists (attend/cuda/code_rows.h): where each of `count` rows of
/// all heads comes from, among the rows that were there, and among the fresh ones, of which those
/// of the next head come `fresh_stride` rows later. A list says `stays` where the other names a
/// row, and held says `zero` where neither does.
struct NameCall {
  RaggedHeads there, named, to;
  const int32_t* kept = nullptr;
  int heads = 0, fresh_stride = 0, count = 0;
  int stays = 0, zero = 0;
  int32_t *held = nullptr, *fresh = nullptr;  // [count]
};
void name_rows(const NameCall& call, cudaStream_t stream);

}  // namespace pith::cuda
