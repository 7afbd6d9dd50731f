#include "methods/int_options.h"
#include "methods/methods.h"

namespace pith {

CodecRow int4_row() { return int_row(4, "llama.cpp q4_0"); }

}  // namespace pith
