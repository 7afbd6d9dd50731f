#pragma once
// The simplest selectors, which every other one is compared with: exact, local, streaming_llm and
// uniform; and the dense codecs. One registry row each.

#include "compress/registry.h"

namespace pith {

SelectorRow exact_row();
SelectorRow local_row();
SelectorRow streaming_llm_row();
SelectorRow uniform_row();
CodecRow dense_row(DType dtype);

}  // namespace pith
