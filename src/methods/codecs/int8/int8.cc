#include "methods/int_options.h"
#include "methods/methods.h"

namespace pith {

CodecRow int8_row() {
  CodecRow row;
  row.info = {"int8",           false, "8-bit codes, a scale for 32 numbers of a row (8.5 bits)",
              "llama.cpp q8_0", {},    ""};
  row.takes<IntOptions>();
  row.make = [](const MethodOptions& o, Side side) {
    return make_int_rows(8, o.as<IntOptions>(), side);
  };
  row.on_gpu = [](const MethodOptions& options, const OfferSite& site) {
    const auto& o = options.as<IntOptions>();
    return int_on_gpu("int8", write_options("int8", o), o, site, false);
  };
  return row;
}

}  // namespace pith
