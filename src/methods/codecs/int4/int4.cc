#include "methods/int_options.h"
#include "methods/methods.h"

namespace pith {

CodecRow int4_row() {
  CodecRow row;
  row.info = {"int4",           false, "4-bit codes, a scale for 32 numbers of a row (4.5 bits)",
              "llama.cpp q4_0", {},    ""};
  row.takes<IntOptions>();
  row.make = [](const MethodOptions& o, Side side) {
    return make_int_rows(4, o.as<IntOptions>(), side);
  };
  row.on_gpu = [](const MethodOptions& options, const OfferSite& site) {
    const auto& o = options.as<IntOptions>();
    return int_on_gpu("int4", write_options("int4", o), o, site, false);
  };
  return row;
}

}  // namespace pith
