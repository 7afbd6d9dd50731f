#pragma once
// Every method, in the order of help: the one place outside its folder that names it. Both
// registries are made of these lists, and the functions that a method's folder defines are declared
// by them.

#include "policy/registry.h"

// clang-format off
/// name_row() makes a method's row.
#define PITH_SELECTORS(X) \
  X(exact) X(local) X(streaming_llm) X(uniform) X(express) X(balancekv) X(buzz) X(h2o) X(tova) \
  X(snapkv) X(adakv) X(pyramidkv) X(keydiff) X(knorm) X(expected_attention)
#define PITH_CODECS(X) \
  X(int8) X(int4) X(kivi) X(qjl) X(kvquant) X(gear) X(turboquant) X(csr) X(ladder) X(kvtc)

/// cuda::make_name_on_gpu() makes what it is there. exact, local and streaming_llm are there without:
/// all rows that leave the window stay, or none.
#define PITH_SELECTORS_ON_GPU(X) \
  X(uniform) X(express) X(balancekv) X(buzz) X(h2o) X(tova) X(snapkv) X(adakv) \
  X(pyramidkv) X(keydiff) X(knorm) X(expected_attention)
#define PITH_CODECS_ON_GPU(X) \
  X(int8) X(int4) X(kivi) X(qjl) X(kvquant) X(gear) X(turboquant) X(csr) X(ladder) X(kvtc)
// clang-format on

namespace pith {

#define PITH_DECLARE(name) SelectorRow name##_row();
PITH_SELECTORS(PITH_DECLARE)
#undef PITH_DECLARE
#define PITH_DECLARE(name) CodecRow name##_row();
PITH_CODECS(PITH_DECLARE)
#undef PITH_DECLARE
/// Rows as they are: f32, f16, bf16.
CodecRow dense_row(DType dtype);

}  // namespace pith
