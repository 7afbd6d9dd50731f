#include "methods/int_options.h"
#include "methods/methods.h"

namespace pith {

CodecRow int8_row() { return int_row(8, "llama.cpp q8_0"); }

}  // namespace pith
