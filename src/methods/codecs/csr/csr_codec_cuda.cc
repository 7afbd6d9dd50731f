// csr's codec on the GPU: the dictionaries of one layer's heads, trained, drawn from their first
// rows, or both.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/finite.h"
#include "kernels/cuda/device_archive.h"
#include "methods/codecs/csr/csr.h"
#include "methods/codecs/csr/csr_codec.h"
#include "methods/codecs/csr/csr_cuda.h"
#include "methods/registry_cuda.h"
#include "pith/error.h"
#include "rows/cuda/device_codec.h"

namespace pith::cuda {
namespace {

/// Common to both sides' formats, and the trained atoms.
struct CsrPlan {
  CsrFormat keys, values;  ///< chunks as given, 0: those of the layer's rows
  std::shared_ptr<const DictionaryFile> offline;
  std::string name;
};

/// The sources of one side's atoms.
struct CsrSources {
  CsrFormat format;             ///< with chunks
  int count = 0, offline = 0;   // N, and how many of them are trained
  int dim = 0;                  // d
  bool common = false;          ///< one dictionary for all heads
  std::vector<uint32_t> drawn;  // [G, parts] that atoms are drawn from, on the host
  std::vector<uint64_t> seeds;  // [G] of k-means
};

/// One side of all heads.
struct CsrTables : CsrSources {
  DeviceArray<uint16_t> atoms;  // [G or 1, N, d] f16; zeros until they are learnt

  CsrAtoms device(const float* gram = nullptr) const { return {atoms.data(), gram, count, common}; }
  size_t bytes() const { return 2 * atoms.size(); }
  size_t heads_with_atoms(size_t heads) const { return common ? 1 : heads; }
  /// Numbers of the Gram matrices [G or 1, N, N].
  size_t gram(size_t heads) const {
    return heads_with_atoms(heads) * static_cast<size_t>(count) * static_cast<size_t>(count);
  }
  /// Whether atoms are centroids of what is drawn, and not the parts themselves.
  bool clusters(size_t heads) const {
    return drawn.size() > heads * static_cast<size_t>(count - offline);
  }
  /// The most that learning and coding take for a moment.
  size_t scratch_bytes(size_t heads) const {
    const size_t all = clusters(heads) ? 2 * drawn.size() * static_cast<size_t>(dim) : 0;
    return std::max(4 * drawn.size() + all, 4 * gram(heads));
  }
};

/// Of a KV head of the site.
RowsRequest request_of(const TableSite& site, Side side, int head) {
  RowsRequest request;
  request.side = side;
  request.dim = static_cast<size_t>(site.head_dim);
  request.head = site.first_head + static_cast<uint32_t>(head);
  request.seed = site.seed;
  request.layer = site.layer;
  request.model = site.model;
  return request;
}

class CsrDeviceCodec final : public DeviceCodec {
 public:
  /// `positions`: keys before RoPE have theirs beside them.
  explicit CsrDeviceCodec(std::shared_ptr<const CsrPlan> plan, bool positions = false)
      : plan_(std::move(plan)), name_(plan_->name) {
    coding_.positions = positions;
    coding_.pairs = static_cast<int>(plan_->keys.pairs);
    coding_.packed = plan_->keys.packed;
    coding_.solver = plan_->keys.solver == Solver::kMp ? CsrSolver::kMp : CsrSolver::kOmp;
  }

  std::string name() const override { return name_; }
  std::shared_ptr<const DeviceCodec> with_tables(const TableSite& site) const override;
  std::shared_ptr<const DeviceCodec> copy(cudaStream_t stream) const override;
  size_t shared_bytes() const override {
    return keys_.bytes() + values_.bytes() + 8 * turns_.size();
  }
  size_t scratch_bytes() const override {
    const auto heads = static_cast<size_t>(site_.kv_heads);
    return std::max(keys_.scratch_bytes(heads), values_.scratch_bytes(heads));
  }
  size_t learns_from() const override {
    return plan_->keys.online > 0 ? (plan_->keys.collect + 31) / 32 * 32 : 0;
  }
  void learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
             cudaStream_t stream) const override;
  void archive(Archive& a, cudaStream_t stream) const override;
  void check_loaded(const Archive& a, const LoadedCodes& codes) const override;
  GroupedBytes block_bytes(int) const override { return csr_bytes(coding_); }
  void code(const CodeBatch& batch, std::span<const CodeJob> keys, std::span<const CodeJob> values,
            cudaStream_t stream) const override {
    code_side(true, batch, keys, stream);
    code_side(false, batch, values, stream);
  }
  void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    for (const UnpackRowsCall& c : calls) unpack_csr(coding_, keys_.device(), true, c, stream);
  }
  void unpack_values_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const override {
    for (const UnpackRowsCall& c : calls) unpack_csr(coding_, values_.device(), false, c, stream);
  }
  std::shared_ptr<const DeviceCodec> with_rows_alone(int) const override {
    if (!turns_keys() || coding_.positions) return nullptr;
    return std::make_shared<CsrDeviceCodec>(plan_, true);
  }
  void move_rows_of(std::span<const MoveCodesCall> calls, cudaStream_t stream) const override {
    for (const MoveCodesCall& call : calls) move_csr_rows(coding_, call, stream);
  }
  void add_token_mass(const TokenMass& call, const MassTarget* target,
                      cudaStream_t stream) const override {
    add_csr_mass(coding_, keys_.device(), call, target, stream);
  }
  void attend(const DecodeCall& call, const DecodeScratch& scratch,
              cudaStream_t stream) const override {
    decode_csr({coding_, keys_.device(), values_.device()}, call, scratch, stream);
  }

 private:
  bool turns_keys() const { return !plan_->keys.rotated_keys; }
  std::shared_ptr<CsrDeviceCodec> empty(const TableSite& site) const;
  CsrTables make_tables(Side side) const;
  /// As on the CPU.
  static PackedPairs packing(const CsrTables& t) {
    return PackedPairs(static_cast<size_t>(t.offline) + t.format.online);
  }
  void load_trained(CsrTables& tables, Side side) const;
  void allocate(CsrTables& tables) const;
  void code_side(bool keys, const CodeBatch& batch, std::span<const CodeJob> jobs,
                 cudaStream_t stream) const;
  void cluster(const CsrTables& tables, CsrDraw draw, cudaStream_t stream) const;

  std::shared_ptr<const CsrPlan> plan_;
  std::string name_;
  CsrCoding coding_;
  TableSite site_;
  DeviceArray<double> turns_;  // [D/2] of RoPE, where keys are coded before it
  CsrTables keys_, values_;
};

/// The codec of a layer without its dictionaries.
std::shared_ptr<CsrDeviceCodec> CsrDeviceCodec::empty(const TableSite& site) const {
  auto own = std::make_shared<CsrDeviceCodec>(plan_, coding_.positions);
  own->name_ = fmt::format("{}, layer {}", plan_->name, site.layer);
  own->site_ = site;
  if (!turns_keys()) return own;
  own->turns_ = rope_turns(site, "csr rotates keys");
  own->coding_.turns = own->turns_.data();
  return own;
}

void CsrDeviceCodec::allocate(CsrTables& t) const {
  const size_t heads = t.heads_with_atoms(static_cast<size_t>(site_.kv_heads));
  const auto n = static_cast<size_t>(t.count), d = static_cast<size_t>(t.dim);
  t.atoms = {*site_.memory, MemoryKind::kShared, heads * n * d, site_.stream};
  check(cudaMemsetAsync(t.atoms.data(), 0, 2 * t.atoms.size(), site_.stream), "CSR's atoms");
}

CsrTables CsrDeviceCodec::make_tables(Side side) const {
  const bool keys = side == Side::kKeys;
  const CsrFormat& given = keys ? plan_->keys : plan_->values;
  CsrTables t;
  t.format = CsrCodec(given, side, plan_->offline).fitted(static_cast<size_t>(site_.head_dim));
  t.dim = site_.head_dim / static_cast<int>(t.format.chunks);
  size_t online = 0;
  for (int head = 0; head < site_.kv_heads && given.online > 0; ++head) {
    const auto parts = draw_online_parts(t.format, request_of(site_, side, head));
    online = std::min(parts.size(), given.online);
    t.drawn.insert(t.drawn.end(), parts.begin(), parts.end());
    t.seeds.push_back(online_cluster_seed(request_of(site_, side, head)));
  }
  if (plan_->offline) {
    const OfflineAtoms first = plan_->offline->atoms(request_of(site_, side, 0));
    const OfflineAtoms last = plan_->offline->atoms(request_of(site_, side, site_.kv_heads - 1));
    t.offline = static_cast<int>(first.count);
    t.common = online == 0 && first.rows == last.rows;
  }
  t.count = t.offline + static_cast<int>(online);
  return t;
}

/// Each head's trained atoms come first.
void CsrDeviceCodec::load_trained(CsrTables& t, Side side) const {
  const size_t each = static_cast<size_t>(t.offline) * t.dim;
  for (int head = 0; head < (t.common ? 1 : site_.kv_heads); ++head) {
    const OfflineAtoms atoms = plan_->offline->atoms(request_of(site_, side, head));
    check(cudaMemcpyAsync(t.atoms.data() + static_cast<size_t>(head) * t.count * t.dim, atoms.rows,
                          2 * each, cudaMemcpyHostToDevice, site_.stream),
          "CSR's trained atoms");
  }
}

/// The Gram matrix is made for each call and dropped, as on the CPU: kept, it would weigh more than
/// the rows, N^2 numbers per head and side.
void CsrDeviceCodec::code_side(bool keys, const CodeBatch& batch, std::span<const CodeJob> jobs,
                               cudaStream_t stream) const {
  if (jobs.empty()) return;
  const CsrTables& t = keys ? keys_ : values_;
  const auto heads = static_cast<size_t>(site_.kv_heads);
  const DeviceArray<float> gram(site_.of_moments(), MemoryKind::kScratch, t.gram(heads), stream);
  make_csr_gram(gram.data(), t.atoms.data(), static_cast<int>(t.heads_with_atoms(heads)), t.count,
                t.dim, stream);
  const CsrAtoms atoms = t.device(gram.data());
  for (const CodeJob& j : jobs) code_csr(coding_, atoms, keys, batch, j, stream);
}

std::shared_ptr<const DeviceCodec> CsrDeviceCodec::with_tables(const TableSite& site) const {
  const auto own = empty(site);
  own->keys_ = own->make_tables(Side::kKeys);
  own->values_ = own->make_tables(Side::kValues);
  own->coding_.key_chunks = static_cast<int>(own->keys_.format.chunks);
  own->coding_.value_chunks = static_cast<int>(own->values_.format.chunks);
  own->coding_.key_bits = packing(own->keys_).index_bits();
  own->coding_.value_bits = packing(own->values_).index_bits();
  const CsrDictionaries sizes{
      own->coding_, {.count = own->keys_.count}, {.count = own->values_.count}};
  sizes.coding.check(site.head_dim, sizes.keys, sizes.values);
  if (!sizes.coding.has_tables()) check_csr_room(sizes, site.head_dim);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    CsrTables& t = side == Side::kKeys ? own->keys_ : own->values_;
    own->allocate(t);
    if (t.offline > 0) own->load_trained(t, side);
  }
  return own;
}

std::shared_ptr<const DeviceCodec> CsrDeviceCodec::copy(cudaStream_t stream) const {
  const auto own = empty(site_);
  own->coding_ = coding_;
  own->coding_.turns = own->turns_.data();
  const auto fill = [&](CsrTables& to, const CsrTables& from) {
    static_cast<CsrSources&>(to) = from;
    own->allocate(to);
    check(cudaMemcpyAsync(to.atoms.data(), from.atoms.data(), 2 * from.atoms.size(),
                          cudaMemcpyDeviceToDevice, stream),
          "a copy of CSR's atoms");
  };
  fill(own->keys_, keys_);
  fill(own->values_, values_);
  return own;
}

void CsrDeviceCodec::learn(const RowTarget& rows, DType dtype, const RowPositions& positions,
                           cudaStream_t stream) const {
  for (const bool keys : {true, false}) {
    const CsrTables& t = keys ? keys_ : values_;
    const DeviceArray<uint32_t> parts(site_.of_moments(), MemoryKind::kScratch, t.drawn.size(),
                                      stream);
    check(cudaMemcpyAsync(parts.data(), t.drawn.data(), 4 * t.drawn.size(), cudaMemcpyHostToDevice,
                          stream),
          "the rows that CSR's atoms are drawn from");
    CsrDraw draw;
    draw.rows = keys ? rows.k : rows.v;
    draw.head_stride = rows.head_stride;
    draw.dtype = dtype;
    draw.parts = parts.data();
    draw.heads = site_.kv_heads;
    draw.count = static_cast<int>(t.drawn.size()) / site_.kv_heads;
    draw.dim = site_.head_dim;
    draw.chunks = static_cast<int>(t.format.chunks);
    draw.first = t.offline;
    draw.all = t.count;
    draw.turns = keys ? coding_.turns : nullptr;
    draw.positions = positions;
    if (t.clusters(static_cast<size_t>(site_.kv_heads))) {
      cluster(t, draw, stream);
    } else {
      draw_csr_atoms(t.atoms.data(), draw, stream);
    }
  }
}

// Trained atoms are the dictionary's.
void CsrDeviceCodec::archive(Archive& a, cudaStream_t stream) const {
  for (const CsrTables* t : {&keys_, &values_}) {
    const size_t row = 2 * static_cast<size_t>(t->dim), online = t->count - t->offline;
    const auto heads = t->heads_with_atoms(static_cast<size_t>(site_.kv_heads));
    std::byte* atoms = reinterpret_cast<std::byte*>(t->atoms.data()) + t->offline * row;
    archive_finite(a, {atoms, online * row, t->count * row, heads}, DType::kF16, stream);
  }
}

void CsrDeviceCodec::check_loaded(const Archive& a, const LoadedCodes& codes) const {
  if (codes.side() || codes.part == CodePartOf::kRecords) return;
  const CsrTables& t = codes.keys() ? keys_ : values_;
  const CsrLayout layout = coding_.layout(codes.keys());
  const PackedPairs packed = packing(t);
  for (size_t at = 0; at < codes.bytes.size(); at += static_cast<size_t>(layout.block_bytes())) {
    for (int i = 0; i < kBlockRows * layout.pairs; ++i) {
      const int row = i % kBlockRows, place = layout.at(row, i / kBlockRows);
      uint16_t atom = 0, coefficient = 0;
      if (layout.packed) {
        const auto* numbers = codes.at<uint16_t>(at);
        packed.unpack(&atom, &coefficient, numbers + place,
                      numbers + kBlockRows * layout.pairs + row, 1, 1);
      } else {
        const uint32_t word = codes.at<uint32_t>(at)[place];
        a.need(word % 16 == 0, "an atom that is not there");
        atom = static_cast<uint16_t>((word & 0xffff) / 16);
        coefficient = static_cast<uint16_t>(word >> 16);
      }
      a.need(atom < t.count, "an atom that is not there");
      a.need(!has_non_finite(&coefficient, DType::kF16, 1), "a number is not finite");
    }
  }
}

/// Online atoms <- the centroids of all parts, found on the host as the CPU finds them: waits.
void CsrDeviceCodec::cluster(const CsrTables& t, CsrDraw draw, cudaStream_t stream) const {
  const auto d = static_cast<size_t>(t.dim), parts = static_cast<size_t>(draw.count);
  const size_t heads = t.seeds.size(), online = static_cast<size_t>(t.count - t.offline);
  DeviceArray<uint16_t> all(site_.of_moments(), MemoryKind::kScratch, heads * parts * d, stream);
  draw.first = 0;
  draw.all = draw.count;
  draw_csr_atoms(all.data(), draw, stream);
  std::vector<uint16_t> host(all.size()), atoms;
  all.download(host.data(), host.size(), stream);
  check(cudaStreamSynchronize(stream), "the rows that CSR's atoms are drawn from");
  for (size_t head = 0; head < heads; ++head) {
    atoms = cluster_atoms(kernels_for(), {host.data() + head * parts * d, parts * d}, d, online,
                          t.seeds[head]);
    check(cudaMemcpyAsync(t.atoms.data() + (head * t.count + t.offline) * d, atoms.data(),
                          2 * atoms.size(), cudaMemcpyHostToDevice, stream),
          "CSR's atoms");
  }
}

}  // namespace

std::shared_ptr<const DeviceCodec> make_csr_on_gpu(const MethodOptions& options) {
  const auto& o = options.as<CsrOptions>();
  auto plan = std::make_shared<CsrPlan>();
  plan->keys = o.format(Side::kKeys);
  plan->values = o.format(Side::kValues);
  const CsrFormat& format = plan->keys;
  if (o.dictionary) {
    plan->offline = std::make_shared<const DictionaryFile>(DictionaryFile::open(*o.dictionary));
  }
  plan->name = fmt::format(
      "csr of {} pairs in {} chunks, {} atoms from {} {}, {}, {} RoPE{}{}", format.pairs,
      format.chunks, format.online, format.collect, format.clusters ? "clusters" : "rows",
      format.solver == Solver::kMp ? "mp" : "omp", format.rotated_keys ? "after" : "before",
      o.dictionary ? " and " + *o.dictionary : "", format.packed ? ", pairs of 16 bits" : "");
  return std::make_shared<CsrDeviceCodec>(std::move(plan));
}

}  // namespace pith::cuda
