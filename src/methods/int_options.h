#pragma once
// The options of codecs of b-bit integers in groups of 32 with f16 scales (int8, int4, kivi), and
// what all three do with them.

#include <memory>
#include <string>

#include "methods/centre_options.h"
#include "policy/registry.h"

namespace pith {

struct IntOptions : CentreOptions {
  bool hadamard = false;
  Fields fields();
};

/// `codec` after a Walsh-Hadamard transform and around means of keys, as `o` asks.
std::unique_ptr<Codec> with_int_options(std::unique_ptr<Codec> codec, const IntOptions& o,
                                        Side side);

/// The row of int8 and int4.
CodecRow int_row(int bits, const char* source);

/// Rows of levels on the GPU. `code` names them (Offers::code); `shares`: keys share scales.
Offers int_on_gpu(const std::string& name, const std::string& code, const IntOptions& o,
                  const OfferSite& site, bool shares);

}  // namespace pith
