#include "methods/codecs/csr/csr_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/digest.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "methods/codecs/csr/kmeans.h"
#include "rows/cpu/compaction.h"

namespace pith {
namespace {

constexpr size_t kCodeRows = 512;   // coded at a time: their copy stays small
constexpr size_t kPackedTile = 64;  // packed rows that are unpacked at a time: 16 KiB of stack
constexpr uint32_t kOnlineDraw = 0x4353;

/// Forks share the atoms and may outlive this session: its counter lives as long.
std::shared_ptr<const Array<uint16_t>> shared_atoms(MemoryCounter& counter, Array<uint16_t> atoms) {
  struct Kept {
    std::shared_ptr<MemoryCounter> counter;
    Array<uint16_t> atoms;
  };
  const auto kept = std::make_shared<const Kept>(Kept{counter.shared(), std::move(atoms)});
  return {kept, &kept->atoms};
}

DenseRowsStore f16_rows(const Context& context, size_t dim) {
  RowsRequest request;
  request.dim = dim;
  return {context, DType::kF16, request};
}

}  // namespace

CsrRows::CsrRows(const Context& context, const CsrFormat& format, const RowsRequest& request,
                 const OfflineAtoms& offline)
    : CodedRows(context.kernels, request.dim),
      format_(format),
      context_(context),
      offline_(offline),
      collecting_(format.online > 0 ? format.collect : 0),
      collected_(context.memory, MemoryKind::kShared),
      indices_(context.memory, MemoryKind::kPayload),
      coefficients_(context.memory, MemoryKind::kPayload),
      exact_(f16_rows(context, request.dim)),
      exact_at_(context.memory, MemoryKind::kMetadata),
      waiting_(f16_rows(context, request.dim)) {
  indices_.set_growth_limit(request.max_rows * format.pairs);
  coefficients_.set_growth_limit(request.max_rows * format.factors());
  if (format.packed) packed_.emplace(offline.count + format.online);
  if (collecting_ > 0) choose_online(request);
}

std::vector<uint32_t> draw_online_parts(const CsrFormat& format, const RowsRequest& request) {
  const Philox random(request.seed, request.layer, request.head);
  const uint32_t draw = kOnlineDraw + (request.side == Side::kValues);
  const size_t parts = format.collect * format.chunks;
  std::vector<uint32_t> chosen(parts);
  std::iota(chosen.begin(), chosen.end(), 0u);
  if (parts <= format.online || format.clusters) return chosen;
  std::vector<uint64_t> words(parts);
  for (size_t i = 0; i < parts; ++i) words[i] = random.word64(i, draw);
  std::nth_element(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(format.online),
                   chosen.end(), [&](uint32_t a, uint32_t b) { return words[a] < words[b]; });
  chosen.resize(format.online);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

uint64_t online_cluster_seed(const RowsRequest& request) {
  const Philox random(request.seed, request.layer, request.head);
  return random.word64(0, kOnlineDraw + (request.side == Side::kValues) + 2);
}

std::vector<uint16_t> cluster_atoms(const Kernels& kernels, std::span<const uint16_t> parts,
                                    size_t dim, size_t online, uint64_t seed) {
  const size_t count = parts.size() / dim;
  if (count <= online) return {parts.begin(), parts.end()};
  std::vector<float> x(parts.size());
  kernels.to_f32(x.data(), parts.data(), DType::kF16, x.size());
  std::vector<float> centroids = kmeans(kernels, x.data(), count, dim, {online, 10, seed});
  normalise_rows(kernels, centroids.data(), online, dim);
  std::vector<uint16_t> atoms(centroids.size());
  kernels.from_f32(atoms.data(), centroids.data(), DType::kF16, atoms.size());
  return atoms;
}

void CsrRows::choose_online(const RowsRequest& request) {
  cluster_seed_ = online_cluster_seed(request);
  chosen_ = draw_online_parts(format_, request);
  // No more is taken before the first row: a store without rows has no bytes in any bound.
  collected_.set_growth_limit(chosen_.size() * atom_dim());
}

void CsrRows::collect(const float* row) {
  const size_t d = atom_dim();
  for (; next_chosen_ < chosen_.size() && chosen_[next_chosen_] / format_.chunks == seen_;
       ++next_chosen_) {
    const float* x = row + chosen_[next_chosen_] % format_.chunks * d;
    const float norm = std::sqrt(kernels_->dot(x, x, d));
    const size_t before = collected_.size();
    collected_.resize(before + d);
    for (size_t c = 0; c < d; ++c) collected_[before + c] = f32_to_f16(norm > 0 ? x[c] / norm : 0);
  }
  ++seen_;
  --collecting_;
}

void CsrRows::fix_dictionary() {
  if (format_.clusters) {
    const auto atoms = cluster_atoms(*kernels_, {collected_.data(), collected_.size()}, atom_dim(),
                                     format_.online, cluster_seed_);
    collected_.resize(atoms.size());
    std::copy(atoms.begin(), atoms.end(), collected_.data());
    collected_.shrink_to_fit();
  }
  Array<uint16_t> atoms_found(context_.memory.beside(), MemoryKind::kShared);
  atoms_found.reserve(collected_.size());
  atoms_found.resize(collected_.size());
  std::copy(collected_.begin(), collected_.end(), atoms_found.begin());
  online_ = shared_atoms(context_.memory.beside(), std::move(atoms_found));
  collected_ = Array<uint16_t>(context_.memory, MemoryKind::kShared);
  chosen_ = {};
  std::vector<float> rows(std::min(kCodeRows, waiting_.rows()) * dim_);
  const size_t all = waiting_.rows();
  Pursuit pursuit(*kernels_, context_.memory, atom_rows(), atoms());
  for (size_t t = 0; t < all; t += kCodeRows) {
    const size_t n = std::min(kCodeRows, all - t);
    waiting_.decode(rows.data(), t, n);
    code(pursuit, rows.data(), n);
  }
  waiting_.keep({});
}

void CsrRows::archive_online(Archive& a) {
  const size_t wanted = format_.online > 0 ? format_.collect : 0;
  a.number(seen_, wanted, "more rows were collected than a dictionary is made from");
  if (a.loads()) collecting_ = wanted - seen_;
  if (collecting_ > 0) {
    if (a.loads())
      next_chosen_ = static_cast<size_t>(std::ranges::lower_bound(chosen_, seen_ * format_.chunks) -
                                         chosen_.begin());
    const size_t parts = next_chosen_ * atom_dim();
    a.halves(collected_, parts);
  } else if (wanted > 0) {
    const size_t parts = std::min(wanted * format_.chunks, format_.online);
    Array<uint16_t> atoms(context_.memory.beside(), MemoryKind::kShared);
    if (!a.loads()) atoms = *online_;
    a.halves(atoms, parts * atom_dim());
    if (!a.loads()) return;
    online_ = shared_atoms(context_.memory.beside(), std::move(atoms));
    collected_ = Array<uint16_t>(context_.memory, MemoryKind::kShared);
    chosen_ = {};
  }
}

void CsrRows::archive(Archive& a) {
  // Trained atoms stay in their file; codes mean nothing with others.
  const std::span atoms_of_file(offline_.rows, offline_.count * offline_.dim);
  const uint64_t atoms_now = digest_of(std::as_bytes(atoms_of_file)).low;
  uint64_t atoms_then = atoms_now;
  a.number(atoms_then, UINT64_MAX);
  a.need(atoms_then == atoms_now, "its trained dictionary is not the one that is there now");
  archive_online(a);
  size_t coded = coded_rows();
  a.number(coded, collecting_ > 0 ? 0 : kMostRows, "coded rows before there is a dictionary");
  a.numbers(indices_, coded * format_.pairs);
  a.halves(coefficients_, coded * format_.factors());
  for (size_t i = 0; a.loads() && i < indices_.size(); ++i)
    a.need((packed_ ? packed_->index_of(indices_[i]) : indices_[i]) < atoms(),
           "an atom that there is not");
  exact_.archive(a);
  a.ascending(exact_at_, exact_.rows(), coded);
  waiting_.archive(a);
  a.need(collecting_ > 0 ? waiting_.rows() <= seen_ : waiting_.rows() == 0,
         "more rows wait than were collected");
}

void CsrRows::append(const float* x, size_t stride, size_t count) {
  size_t t = 0;
  for (; t < count && collecting_ > 0; ++t) {
    waiting_.append(x + t * stride, stride, 1);
    collect(x + t * stride);
    if (collecting_ == 0) fix_dictionary();
  }
  if (t == count) return;
  std::vector<float> rows(std::min(kCodeRows, count - t) * dim_);
  Pursuit pursuit(*kernels_, context_.memory, atom_rows(), atoms());
  for (; t < count; t += kCodeRows) {
    const size_t n = std::min(kCodeRows, count - t);
    for (size_t i = 0; i < n; ++i) std::copy_n(x + (t + i) * stride, dim_, rows.data() + i * dim_);
    code(pursuit, rows.data(), n);
  }
}

void CsrRows::code(Pursuit& pursuit, const float* x, size_t count) {
  const size_t before = coded_rows(), pairs = format_.pairs;
  indices_.resize((before + count) * pairs);
  coefficients_.resize((before + count) * format_.factors());
  uint16_t *codes = indices_.data() + before * pairs,
           *factors = coefficients_.data() + before * format_.factors();
  const Pursuit::Shape shape{pairs / format_.chunks, format_.solver};
  if (packed_) {
    std::vector<uint16_t> found(count * pairs);
    pursuit.code(codes, found.data(), x, count * format_.chunks, shape);
    for (size_t t = 0; t < count; ++t)
      factors[t] = packed_->pack(codes + t * pairs, codes + t * pairs, &found[t * pairs], pairs);
  } else {
    pursuit.code(codes, factors, x, count * format_.chunks, shape);
  }
  if (format_.outliers < 1) keep_outliers(x, count);
}

void CsrRows::keep_outliers(const float* x, size_t count) {
  const size_t before = coded_rows() - count, pairs = format_.pairs, factors = format_.factors();
  std::vector<float> built(count * dim_);
  decode(built.data(), before, count);
  for (size_t t = 0; t < count; ++t) {
    const float* row = x + t * dim_;
    float left = 0;
    for (size_t c = 0; c < dim_; ++c) {
      const float e = row[c] - built[t * dim_ + c];
      left += e * e;
    }
    if (!(left > format_.outliers * format_.outliers * kernels_->dot(row, row, dim_))) continue;
    exact_.append(row, dim_, 1);
    exact_at_.push_back(static_cast<uint32_t>(before + t));
    std::fill_n(indices_.data() + (before + t) * pairs, pairs, uint16_t{0});
    std::fill_n(coefficients_.data() + (before + t) * factors, factors, uint16_t{0});
  }
}

void CsrRows::keep_exact(std::span<const uint32_t> kept) {
  std::vector<uint32_t> stay;
  size_t to = 0;
  for (size_t i = 0; i < exact_at_.size(); ++i) {
    while (to < kept.size() && kept[to] < exact_at_[i]) ++to;
    if (to == kept.size() || kept[to] != exact_at_[i]) continue;
    exact_at_[stay.size()] = static_cast<uint32_t>(to);
    stay.push_back(static_cast<uint32_t>(i));
  }
  exact_at_.resize(stay.size());
  exact_.keep(stay);
}

void CsrRows::keep(std::span<const uint32_t> kept) {
  const size_t coded = coded_rows();
  const size_t stay = static_cast<size_t>(
      std::lower_bound(kept.begin(), kept.end(), static_cast<uint32_t>(coded)) - kept.begin());
  if (!exact_at_.empty()) keep_exact(kept.first(stay));
  keep_records(indices_, format_.pairs, kept.first(stay));
  keep_records(coefficients_, format_.factors(), kept.first(stay));
  std::vector<uint32_t> waiting(kept.begin() + static_cast<ptrdiff_t>(stay), kept.end());
  for (uint32_t& row : waiting) row -= static_cast<uint32_t>(coded);
  waiting_.keep(waiting);
}

template <class F>
void CsrRows::for_sparse(size_t first, size_t end, const F& f) const {
  const size_t pairs = format_.pairs, chunks = format_.chunks;
  if (!packed_)
    return f(SparseRows{indices_.data() + first * pairs, coefficients_.data() + first * pairs,
                        pairs / chunks, chunks},
             first, end - first);
  uint16_t indices[kPackedTile * SparseRows::kMaxPairs];
  uint16_t coefficients[kPackedTile * SparseRows::kMaxPairs];
  for (size_t t = first; t < end; t += kPackedTile) {
    const size_t n = std::min(kPackedTile, end - t);
    packed_->unpack(indices, coefficients, indices_.data() + t * pairs, coefficients_.data() + t,
                    pairs, n);
    f(SparseRows{indices, coefficients, pairs / chunks, chunks}, t, n);
  }
}

std::pair<size_t, size_t> CsrRows::exact_between(size_t first, size_t end) const {
  const auto at = [&](size_t row) {
    return static_cast<size_t>(std::lower_bound(exact_at_.begin(), exact_at_.end(), row) -
                               exact_at_.begin());
  };
  return {at(first), at(end)};
}

void CsrRows::decode(float* out, size_t first, size_t count) const {
  const size_t end = first + count, coded = std::min(end, coded_rows());
  if (first < coded) {
    for_sparse(first, coded, [&](const SparseRows& rows, size_t at, size_t n) {
      kernels_->sum_atoms(out + (at - first) * dim_, rows, atom_rows(), n);
    });
    const auto [from, to] = exact_between(first, coded);
    for (size_t i = from; i < to; ++i) exact_.decode(out + (exact_at_[i] - first) * dim_, i, 1);
  }
  const size_t next = std::max(first, coded);
  if (next < end) waiting_.decode(out + (next - first) * dim_, next - coded_rows(), end - next);
}

// Products of every query with every atom: [chunks, atoms, M].
size_t CsrRows::prepared_size(size_t queries) const {
  return format_.rotated_keys ? format_.chunks * atoms() * queries : 0;
}

void CsrRows::prepare(float* prepared, const float* q, size_t queries) const {
  if (!format_.rotated_keys) return;
  const size_t d = atom_dim();
  const AtomRows all = atom_rows();
  std::vector<float> dots(atoms());
  for (size_t j = 0; j < format_.chunks; ++j, prepared += atoms() * queries)
    for (size_t m = 0; m < queries; ++m) {
      const float* part = q + m * dim_ + j * d;
      if (all.split > 0)
        kernels_->dot_rows(dots.data(), all.split, part, 1, {all.first, DType::kF16, d}, all.split,
                           1);
      if (online_)
        kernels_->dot_rows(dots.data() + all.split, atoms(), part, 1, {all.second, DType::kF16, d},
                           atoms() - all.split, 1);
      for (size_t n = 0; n < atoms(); ++n) prepared[n * queries + m] = dots[n];
    }
}

void CsrRows::scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
                     size_t first, size_t count, float scale) const {
  if (!format_.rotated_keys)
    return CodedRows::scores(out, ld, q, prepared, queries, first, count, scale);
  const size_t end = first + count, coded = std::min(end, coded_rows());
  if (first < coded) {
    for_sparse(first, coded, [&](const SparseRows& rows, size_t at, size_t n) {
      kernels_->sparse_dots(out + (at - first), ld, prepared, atoms(), queries, rows, n, scale);
    });
    const auto [from, to] = exact_between(first, coded);
    for (size_t i = from; i < to; ++i)
      exact_.scores(out + (exact_at_[i] - first), ld, q, nullptr, queries, i, 1, scale);
  }
  const size_t next = std::max(first, coded);
  if (next < end)
    waiting_.scores(out + (next - first), ld, q, nullptr, queries, next - coded_rows(), end - next,
                    scale);
}

void CsrRows::accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                         size_t count) const {
  const size_t width = accumulator_width(), sums = width - dim_;
  const size_t end = first + count, coded = std::min(end, coded_rows());
  if (first < coded) {
    std::vector<float> by_atom(sums * queries);  // [chunks, atoms, M]
    for_sparse(first, coded, [&](const SparseRows& rows, size_t at, size_t n) {
      kernels_->add_coefficients(by_atom.data(), atoms(), p + (at - first), ld, queries, rows, n);
    });
    for (size_t m = 0; m < queries; ++m)
      for (size_t i = 0; i < sums; ++i) acc[m * width + i] += by_atom[i * queries + m];
    const auto [from, to] = exact_between(first, coded);
    for (size_t i = from; i < to; ++i)
      for (size_t m = 0; m < queries; ++m)
        exact_.accumulate(acc + m * width + sums, p + m * ld + (exact_at_[i] - first), ld, 1, i, 1);
  }
  const size_t next = std::max(first, coded);
  if (next < end)
    for (size_t m = 0; m < queries; ++m)
      waiting_.accumulate(acc + m * width + sums, p + m * ld + (next - first), ld, 1,
                          next - coded_rows(), end - next);
}

void CsrRows::finish(float* out, const float* acc, size_t queries) const {
  const size_t width = accumulator_width(), d = atom_dim();
  const AtomRows all = atom_rows();
  for (size_t m = 0; m < queries; ++m, acc += width, out += dim_) {
    for (size_t j = 0; j < format_.chunks; ++j) {
      const float* sums = acc + j * atoms();
      if (all.split > 0)
        kernels_->add_rows(out + j * d, sums, all.split, 1, {all.first, DType::kF16, d}, all.split);
      if (online_)
        kernels_->add_rows(out + j * d, sums + all.split, atoms(), 1, {all.second, DType::kF16, d},
                           atoms() - all.split);
    }
    kernels_->add(out, acc + format_.chunks * atoms(), dim_);
  }
}

size_t CsrRows::table_bytes() const {
  return (collected_.size() + (online_ ? online_->size() : 0)) * sizeof(uint16_t);
}

}  // namespace pith
