#pragma once

#include "policy/options.h"

namespace pith {

/// The parameter `center` of the codecs that offer it.
inline Field centre_field(size_t& rows) {
  return whole("center", rows, {.most = 65536},
               "rows whose keys are coded around their mean; scores get its share back; 0 = none");
}

}  // namespace pith
