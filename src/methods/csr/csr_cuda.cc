#include "methods/csr/csr_cuda.h"

#include <fmt/format.h>

#include <vector>

#include "attend/cuda/device_codec.h"
#include "methods/csr/csr.h"
#include "methods/csr/csr_rows.h"
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

namespace {

/// Online dictionaries of the heads of one layer, drawn from their first rows.
class CsrDeviceCodec final : public DeviceCodec {
 public:
  explicit CsrDeviceCodec(const CsrFormat& format)
      : format_(format),
        coding_{static_cast<int>(format.pairs), static_cast<int>(format.chunks),
                format.solver == Solver::kMp ? CsrSolver::kMp : CsrSolver::kOmp},
        name_(fmt::format("csr of {} pairs in {} chunks, {} atoms from {} rows, {}", format.pairs,
                          format.chunks, format.online, format.collect,
                          format.solver == Solver::kMp ? "mp" : "omp")) {}

  std::string name() const override { return name_; }
  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override;
  std::shared_ptr<const DeviceCodec> copy(cudaStream_t stream) const override;
  size_t shared_bytes() const override { return keys_.bytes() + values_.bytes(); }
  size_t learns_from() const override { return format_.collect; }
  void learn(const RowTarget& rows, DType dtype, cudaStream_t stream) const override;
  GroupedBytes block_bytes(int) const override { return csr_bytes(coding_); }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    for (const CodeJob& j : keys) code_csr_job(coding_, keys_.device(), true, batch, j, stream);
    for (const CodeJob& j : values)
      code_csr_job(coding_, values_.device(), false, batch, j, stream);
  }
  void unpack_keys(const UnpackRowsCall& call, cudaStream_t stream) const override {
    unpack_csr(coding_, keys_.device(), true, call, stream);
  }
  void unpack_values(const UnpackRowsCall& call, cudaStream_t stream) const override {
    unpack_csr(coding_, values_.device(), false, call, stream);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    decode_csr({coding_, keys_.device(), values_.device()}, call, scratch, stream);
  }

 private:
  /// One side of all heads.
  struct Tables {
    int count = 0, dim = 0;       // N, d
    DeviceArray<uint16_t> atoms;  // [G, N, d] f16; zeros until they are learnt
    DeviceArray<float> gram;      // [G, N, N]
    DeviceArray<uint32_t> parts;  // [G, N]

    CsrAtoms device() const { return {atoms.data(), gram.data(), count}; }
    size_t bytes() const { return 2 * atoms.size() + 4 * (gram.size() + parts.size()); }
  };
  Tables make_tables(const TableSite& site, Side side, const std::vector<uint32_t>& parts) const;

  CsrFormat format_;
  CsrCoding coding_;
  std::string name_;
  TableSite site_;
  std::vector<uint32_t> key_parts_, value_parts_;  // [G, N], on the host
  Tables keys_, values_;
};

CsrDeviceCodec::Tables CsrDeviceCodec::make_tables(const TableSite& site, Side side,
                                                   const std::vector<uint32_t>& parts) const {
  const auto heads = static_cast<size_t>(site.kv_heads);
  Tables t;
  t.count = static_cast<int>(parts.size() / heads);
  t.dim = site.head_dim / coding_.chunks(side == Side::kKeys);
  const auto n = static_cast<size_t>(t.count), d = static_cast<size_t>(t.dim);
  t.atoms = {*site.memory, MemoryKind::kShared, heads * n * d, site.stream};
  t.gram = {*site.memory, MemoryKind::kShared, heads * n * n, site.stream};
  t.parts = {*site.memory, MemoryKind::kShared, parts.size(), site.stream};
  check(cudaMemsetAsync(t.atoms.data(), 0, 2 * t.atoms.size(), site.stream), "CSR's atoms");
  t.parts.upload(parts.data(), parts.size(), site.stream);
  return t;
}

std::shared_ptr<const DeviceCodec> CsrDeviceCodec::with_tables(const TableSite& site) const {
  coding_.check(site.head_dim, {nullptr, nullptr, static_cast<int>(format_.online)});
  auto own = std::make_shared<CsrDeviceCodec>(format_);
  own->name_ = fmt::format("{}, layer {}", name_, site.layer);
  own->site_ = site;
  RowsRequest request;
  request.dim = static_cast<size_t>(site.head_dim);
  request.layer = site.layer;
  request.seed = site.seed;
  for (int head = 0; head < site.kv_heads; ++head) {
    request.head = static_cast<uint32_t>(head);
    for (const Side side : {Side::kKeys, Side::kValues}) {
      request.side = side;
      CsrFormat format = format_;
      format.chunks = static_cast<size_t>(coding_.chunks(side == Side::kKeys));
      const auto parts = draw_online_parts(format, request);
      auto& all = side == Side::kKeys ? own->key_parts_ : own->value_parts_;
      all.insert(all.end(), parts.begin(), parts.end());
    }
  }
  own->keys_ = make_tables(site, Side::kKeys, own->key_parts_);
  own->values_ = make_tables(site, Side::kValues, own->value_parts_);
  return own;
}

std::shared_ptr<const DeviceCodec> CsrDeviceCodec::copy(cudaStream_t stream) const {
  auto own = std::make_shared<CsrDeviceCodec>(format_);
  own->name_ = name_;
  own->site_ = site_;
  own->key_parts_ = key_parts_;
  own->value_parts_ = value_parts_;
  own->keys_ = make_tables(site_, Side::kKeys, key_parts_);
  own->values_ = make_tables(site_, Side::kValues, value_parts_);
  const auto fill = [&](const Tables& to, const Tables& from) {
    check(cudaMemcpyAsync(to.atoms.data(), from.atoms.data(), 2 * from.atoms.size(),
                          cudaMemcpyDeviceToDevice, stream),
          "a copy of CSR's atoms");
    check(cudaMemcpyAsync(to.gram.data(), from.gram.data(), 4 * from.gram.size(),
                          cudaMemcpyDeviceToDevice, stream),
          "a copy of CSR's Gram matrix");
  };
  fill(own->keys_, keys_);
  fill(own->values_, values_);
  return own;
}

void CsrDeviceCodec::learn(const RowTarget& rows, DType dtype, cudaStream_t stream) const {
  for (const bool keys : {true, false}) {
    const Tables& t = keys ? keys_ : values_;
    const CsrDraw draw{keys ? rows.k : rows.v, rows.head_stride,    dtype,
                       t.parts.data(),         site_.kv_heads,      t.count,
                       site_.head_dim,         coding_.chunks(keys)};
    draw_csr_atoms(t.atoms.data(), draw, stream);
    make_csr_gram(t.gram.data(), t.atoms.data(), site_.kv_heads, t.count, t.dim, stream);
  }
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_csr_on_gpu(const Parameters& p) {
  CsrFormat format = csr_format(p, Side::kKeys);
  if (!format.rotated_keys) {
    refuse_on_gpu("csr(rope=pre)", "keys are coded there as they are attended to: csr(rope=post)");
  }
  if (p.given("dict")) refuse_on_gpu("csr(dict=...)", "dictionaries are online there");
  if (format.clusters) refuse_on_gpu("csr(draw=kmeans)", "atoms are rows there: draw=rows");
  if (format.outliers < 1) refuse_on_gpu("csr(outliers=...)", "all rows are coded there");
  if (p.given("chunks") && format.chunks != 1) {
    refuse_on_gpu(fmt::format("csr(chunks={})", format.chunks),
                  "keys have one chunk there, values two, or one with chunks=1");
  }
  if (format.chunks == 0) format.chunks = 2;  // of values, for the head_dims that are there
  if (format.pairs != 4 && format.pairs != 8 && format.pairs != 16) {
    refuse_on_gpu(fmt::format("csr(s={})", format.pairs), "s is 4, 8 or 16 there");
  }
  if (format.online == 0 || format.online > 512 || format.collect % 32 != 0) {
    refuse_on_gpu(fmt::format("csr(online={},collect={})", format.online, format.collect),
                  "1 to 512 atoms come from a multiple of 32 rows there");
  }
  return std::make_shared<CsrDeviceCodec>(format);
}

}  // namespace pith::cuda
