#pragma once
// Selectors that keep the rows with the best scores, one file a rule, one registry row each.

#include "compress/registry.h"

namespace pith {

SelectorRow h2o_row();
SelectorRow tova_row();
SelectorRow snapkv_row();
SelectorRow pyramidkv_row();
SelectorRow expected_attention_row();
SelectorRow keydiff_row();
SelectorRow knorm_row();

#ifdef PITH_CUDA
namespace cuda {
SelectorOnGpu make_h2o_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_tova_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_snapkv_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_pyramidkv_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_expected_attention_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_keydiff_on_gpu(const SelectorPlace& place);
SelectorOnGpu make_knorm_on_gpu(const SelectorPlace& place);
}  // namespace cuda
#endif

}  // namespace pith
