#pragma once
// `center` and `pre_rope`: means that codecs of keys take out before they code. All of them read,
// check and carry them out alike.

#include <memory>
#include <string>

#include "policy/offers.h"
#include "policy/options.h"
#include "rows/cpu/coded_rows.h"

namespace pith {

struct CentreOptions {
  size_t center = 0;      ///< rows
  bool pre_rope = false;  ///< one mean, of the first `center` rows before RoPE

  /// Rows of a group that shares a mean; 0: none does.
  size_t group_rows() const { return pre_rope ? 0 : center; }
  /// Rows whose mean before RoPE is all rows'; 0: there is none.
  size_t mean_rows() const { return pre_rope ? center : 0; }

  Fields fields();
  /// Throws kInvalidArgument.
  void check(const std::string& method) const;
};

/// `codec` around means of keys; itself for values and for 0 rows.
std::unique_ptr<Codec> centred_if_asked(std::unique_ptr<Codec> codec, const CentreOptions& o,
                                        Side side);

/// Rows of levels on the GPU with such means.
Offers offers_centred(Offers offers, const CentreOptions& o, Side side);
/// The sizes of groups with a mean of their own that the GPU takes.
Limit center_limit(const std::string& method, const CentreOptions& o, size_t dim);

}  // namespace pith
