#pragma once
// Rows of one KV head as sums of atoms. The dictionary is an offline part, read from a file and
// shared, and an online part: rows of this head, taken as they come and fixed after a number of
// rows that the format names. Until then rows wait in f16, and are coded together; rows whose
// residual is too large stay in f16.

#include <memory>
#include <optional>

#include "methods/codecs/csr/packed_pairs.h"
#include "methods/codecs/csr/pursuit.h"
#include "rows/cpu/coded_rows.h"
#include "rows/cpu/dense.h"

namespace pith {

struct CsrFormat {
  size_t pairs = 8;   ///< of a whole row
  size_t chunks = 0;  ///< parts of a row that share its pairs; 0: 1 for keys, 2 for values
  Solver solver = Solver::kMp;
  bool rotated_keys = false;  ///< keys are coded after RoPE
  size_t online = 0;          ///< atoms taken from the first rows
  size_t collect = 0;         ///< rows seen before the online part is fixed
  bool clusters = false;      ///< online atoms are centroids of those rows, not some of them
  float outliers = 1;         ///< rows with more than this share of their norm left stay exact
  bool packed = false;        ///< pairs of 16 bits, whose coefficients have a scale per row

  /// Numbers of 16 bits beside a row's indices: coefficients, or their scale.
  size_t factors() const { return packed ? 1 : pairs; }
  size_t row_bytes() const { return 2 * (pairs + factors()); }
};

/// The parts of the first `collect` rows that become a head's atoms, ascending: row times chunks
/// plus chunk. Drawn before any row is seen: those with the smallest random words.
std::vector<uint32_t> draw_online_parts(const CsrFormat& format, const RowsRequest& request);
/// The seed of those parts' clusters, where they become atoms.
uint64_t online_cluster_seed(const RowsRequest& request);
/// Atoms [online, d] f16: centroids, of norm 1, of parts [.., d] f16 of norm 1. As many parts or
/// fewer are atoms themselves.
std::vector<uint16_t> cluster_atoms(const Kernels& kernels, std::span<const uint16_t> parts,
                                    size_t dim, size_t online, uint64_t seed);

/// Atoms that may lie in a mapped file.
struct OfflineAtoms {
  const uint16_t* rows = nullptr;  // [count, dim] f16
  size_t count = 0, dim = 0;
  std::shared_ptr<const void> owner;
};

class CsrRows final : public CodedRows {
 public:
  CsrRows(const Context& context, const CsrFormat& format, const RowsRequest& request,
          const OfflineAtoms& offline);

  size_t rows() const override { return coded_rows() + waiting_.rows(); }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  size_t prepared_size(size_t queries) const override;
  void prepare(float* prepared, const float* q, size_t queries) const override;
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  /// Sums over atoms, [chunks, atoms], then the sum of exact rows, [D].
  size_t accumulator_width() const override { return format_.chunks * atoms() + dim_; }
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override;
  void finish(float* out, const float* acc, size_t queries) const override;
  std::unique_ptr<CodedRows> clone() const override { return std::make_unique<CsrRows>(*this); }
  void archive(Archive& a) override;
  size_t payload_bytes() const override {
    return coded_rows() * format_.row_bytes() + exact_.payload_bytes() + waiting_.payload_bytes();
  }
  size_t metadata_bytes() const override { return exact_at_.size() * sizeof(uint32_t); }
  size_t table_bytes() const override;
  size_t allocated_bytes() const override {
    return indices_.capacity_bytes() + coefficients_.capacity_bytes() + exact_.allocated_bytes() +
           waiting_.allocated_bytes() + exact_at_.capacity_bytes() + collected_.capacity_bytes() +
           (online_ ? online_->capacity_bytes() : 0);
  }
  /// Rows that are stored exactly for their residual.
  size_t outlier_rows() const { return exact_at_.size(); }
  /// False while the online part is being collected.
  bool has_dictionary() const { return collecting_ == 0; }

 private:
  size_t coded_rows() const { return indices_.size() / format_.pairs; }
  size_t atom_dim() const { return dim_ / format_.chunks; }
  size_t atoms() const { return offline_.count + (online_ ? online_->size() / atom_dim() : 0); }
  AtomRows atom_rows() const {
    return {offline_.rows, offline_.count, online_ ? online_->data() : nullptr, atom_dim()};
  }
  /// Calls f(rows, first, count) for all coded rows in [first, end), packed ones some at a time.
  template <class F>
  void for_sparse(size_t first, size_t end, const F& f) const;
  void choose_online(const RowsRequest& request);
  void collect(const float* row);
  void fix_dictionary();
  void archive_online(Archive& a);
  void code(Pursuit& pursuit, const float* x, size_t count);  // x [count, D]
  /// Of the last `count` coded rows, those whose residual is too large.
  void keep_outliers(const float* x, size_t count);
  void keep_exact(std::span<const uint32_t> kept);
  /// The outlier rows in [first, end): indices into exact_at_.
  std::pair<size_t, size_t> exact_between(size_t first, size_t end) const;

  CsrFormat format_;
  Context context_;
  OfflineAtoms offline_;
  std::optional<PackedPairs> packed_;
  std::shared_ptr<const Array<uint16_t>> online_;  // [online, d] f16; null until it is fixed
  size_t collecting_;                              ///< rows still to come before it is fixed
  size_t seen_ = 0;                                ///< rows while collecting
  std::vector<uint32_t> chosen_;                   ///< parts of rows that become atoms, ascending
  size_t next_chosen_ = 0;
  uint64_t cluster_seed_ = 0;
  Array<uint16_t> collected_;     // [parts chosen, d] f16, of norm 1, while collecting
  Array<uint16_t> indices_;       // [coded rows, pairs], packed: index and coefficient
  Array<uint16_t> coefficients_;  // [coded rows, factors] f16
  DenseRowsStore exact_;          // [outliers, D] f16
  Array<uint32_t> exact_at_;      // [outliers] the coded rows that they stand for, ascending
  DenseRowsStore waiting_;        // [waiting, D] f16, after the coded rows
};

}  // namespace pith
