#include "methods/codecs/csr/csr_cuda.h"

#include <fmt/format.h>

#include "pith/error.h"
#include "rows/cuda/device_codec.h"

namespace pith::cuda {

void CsrCoding::check(int head_dim, const CsrAtoms& keys, const CsrAtoms& values) const {
  const auto fits = [&](int chunks, const CsrAtoms& atoms) {
    return chunks > 0 && pairs % chunks == 0 && head_dim % (16 * chunks) == 0 && atoms.count > 0 &&
           atoms.count <= 512;
  };
  const bool known = pairs > 0 && pairs <= 32 && (head_dim == 64 || head_dim == 128) &&
                     fits(key_chunks, keys) && fits(value_chunks, values);
  if (known) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("csr on the GPU was asked for {} pairs, {} chunks a key and {} a value, "
                          "{} and {} atoms, head_dim {}; it takes 1 to 32 pairs, chunks that "
                          "divide them and are parts of 16 channels or more, 1 to 512 atoms and "
                          "head_dim 64 or 128",
                          pairs, key_chunks, value_chunks, keys.count, values.count, head_dim));
}

GroupedBytes csr_bytes(const CsrCoding& coding) {
  const auto bytes = static_cast<size_t>(coding.layout(true).block_bytes());
  return {bytes, coding.positions ? size_t{4} * kBlockRows : 0, bytes, 0};
}

void refuse_csr_atoms(const CsrDictionaries& csr, size_t shared_bytes) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("csr with {} atoms of keys and {} of values in {} and {} chunks: a head's atoms "
                  "lie in the {} bytes of this card's shared memory; use fewer of them, or more "
                  "chunks, or --device cpu",
                  csr.keys.count, csr.values.count, csr.coding.key_chunks, csr.coding.value_chunks,
                  shared_bytes));
}

void decode_csr(const CsrDictionaries& csr, const DecodeCall& call, const DecodeScratch& scratch,
                cudaStream_t stream) {
  call.check();
  csr.coding.check(call.shape.head_dim, csr.keys, csr.values);
  if (csr.coding.has_tables()) {
    decode_csr_by_tables(csr, call, scratch, stream);
  } else {
    decode_csr_by_rows(csr, call, scratch, stream);
  }
}

}  // namespace pith::cuda
