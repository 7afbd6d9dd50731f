#include "methods/csr/csr_cuda.h"

#include <fmt/format.h>

#include "pith/error.h"

namespace pith::cuda {

void CsrCoding::check(int head_dim, const CsrAtoms& atoms) const {
  const bool known = (pairs == 4 || pairs == 8 || pairs == 16) &&
                     (value_chunks == 1 || value_chunks == 2) && atoms.count > 0 &&
                     atoms.count <= 512 && (head_dim == 64 || head_dim == 128);
  if (known) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("csr on the GPU was asked for {} pairs, {} chunks a value, {} atoms, "
                          "head_dim {}; it takes 4, 8 or 16 pairs, 1 or 2 chunks, 1 to 512 atoms "
                          "and head_dim 64 or 128",
                          pairs, value_chunks, atoms.count, head_dim));
}

GroupedBytes csr_bytes(const CsrCoding& coding) {
  const auto bytes = static_cast<size_t>(coding.pairs) * 32 * 4;
  return {bytes, 0, bytes, 0};
}

}  // namespace pith::cuda
