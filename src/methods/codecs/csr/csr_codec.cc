#include "methods/codecs/csr/csr_codec.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kMostAtoms = 65536;  // of 16-bit indices
// Of keys as they are attended to. On SmolLM2 their KL is 0.15 at 4096 tokens, 0.83 at 8000.
constexpr size_t kMostRotated = 4096;
constexpr size_t kStores = 2;  // a body has at most two stores, each with online atoms of its own

}  // namespace

CsrFormat CsrCodec::fitted(size_t dim) const {
  CsrFormat f = format_;
  if (offline_) {
    const size_t cut = offline_->chunks(side_);
    if (f.chunks == 0) f.chunks = cut;
    if (f.chunks != cut)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("csr was asked for chunks={}, and the dictionary is for {}", f.chunks, cut));
  }
  if (f.chunks == 0) f.chunks = side_ == Side::kValues && dim % 32 == 0 && f.pairs % 2 == 0 ? 2 : 1;
  if (f.pairs % f.chunks != 0 || dim % (16 * f.chunks) != 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("csr was asked for s={} pairs in {} chunks at head_dim {}; chunks must "
                            "divide s, and be parts of a multiple of 16 channels",
                            f.pairs, f.chunks, dim));
  return f;
}

double CsrCodec::most_bytes(size_t rows, size_t dim, bool /*evicted*/) const {
  const CsrFormat f = fitted(dim);
  const size_t exact = f.outliers < 1 ? rows * (2 * dim + sizeof(uint32_t)) : 0;
  const size_t waiting = std::min(rows, f.collect) * dim * 2;
  const size_t parts = f.clusters ? std::max(f.online, f.collect * f.chunks) : f.online;
  const size_t tables = kStores * parts * (dim / f.chunks) * 2;
  return static_cast<double>(rows * f.row_bytes() + exact + waiting + tables);
}

size_t CsrCodec::table_bytes(const RowsRequest& request) const {
  const OfflineAtoms atoms = offline_ ? offline_->atoms(request) : OfflineAtoms{};
  fitted(request.dim);
  const size_t most = format_.packed ? PackedPairs::kMostAtoms : kMostAtoms;
  if (atoms.count + format_.online > most)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("csr: {} trained and {} online atoms; pairs of {} bits name {}",
                            atoms.count, format_.online, format_.packed ? 16 : 32, most));
  return offline_ ? offline_->layer_bytes(side_, request.layer) : 0;
}

size_t CsrCodec::coding_bytes(const RowsRequest& request, size_t rows) const {
  const CsrFormat f = fitted(request.dim);
  const size_t atoms = (offline_ ? offline_->atoms(request).count : 0) + f.online;
  return Pursuit::scratch(atoms, request.dim / f.chunks, (rows + f.collect) * f.pairs);
}

void CsrCodec::check_context(size_t tokens) const {
  if (!format_.rotated_keys || tokens <= kMostRotated) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("csr(rope=post) in a context of {} tokens: its atoms are of the first "
                          "rows, and later positions rotate keys out of their span; a context "
                          "is {} tokens at most (-c {}), or leave 'rope=post' out",
                          tokens, kMostRotated, kMostRotated));
}

std::unique_ptr<CodedRows> CsrCodec::make_rows(const Context& context,
                                               const RowsRequest& request) const {
  offline_bytes_ = table_bytes(request);
  const OfflineAtoms atoms = offline_ ? offline_->atoms(request) : OfflineAtoms{};
  return std::make_unique<CsrRows>(context, fitted(request.dim), request, atoms);
}

}  // namespace pith
