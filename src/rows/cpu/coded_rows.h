#pragma once
// The codec contract: how a row is stored. Coded rows of one KV head, keys or values, grow at the
// end, lose rows by compaction of their codes (never recoding), and are read in runs.

#include <memory>
#include <span>

#include "core/archive.h"
#include "kernels/context.h"
#include "plan/most_rows.h"

namespace pith {

/// Which tensor a codec codes.
enum class Side : uint8_t { kKeys, kValues };

class CodedRows {
 public:
  virtual ~CodedRows() = default;

  virtual size_t rows() const = 0;
  /// Codes x, f32 [count, D], consecutive rows `stride` numbers apart, as the newest rows.
  /// `count` is a multiple of the codec's block_rows.
  virtual void append(const float* x, size_t stride, size_t count) = 0;
  /// Keeps the rows named, ascending and without repeats, in that order; drops the others.
  /// Memory that is no longer needed is returned.
  virtual void keep(std::span<const uint32_t> kept) = 0;
  /// The same for rows from `first` on: `kept` names those of them that stay, older rows all do.
  virtual void keep_after(size_t first, std::span<const uint32_t> kept);
  /// out f32 [count, D] <- rows [first, first + count).
  virtual void decode(float* out, size_t first, size_t count) const = 0;
  /// out [D, ld] <- the same rows, transposed: out[c * ld + t]; what gemm wants for scores.
  virtual void decode_transposed(float* out, size_t ld, size_t first, size_t count) const;

  /// Keys, of a codec that asks (Codec::first_queries): the mean square of the head's queries in
  /// each pair of channels [D/2], before rows that follow from them. An empty store keeps at most
  /// D / 2 bytes of them.
  virtual void show_queries(std::span<const float> /*energy*/) {}

  /// Keys: what the codec computes once per query and step (QJL's sketch of q). q is [M, D].
  /// Default: nothing. `prepared` is handed back to scores.
  virtual size_t prepared_size(size_t queries) const;
  virtual void prepare(float* prepared, const float* q, size_t queries) const;
  /// Keys: out[m * ld + t] = scale * <q[m], k[first + t]>, straight from the codes.
  /// Default: decode a tile and multiply.
  virtual void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
                      size_t first, size_t count, float scale) const;
  /// Values: acc += sum_t p[m * ld + t] v[first + t]. acc is [M, accumulator_width()]; codecs that
  /// sum coefficients first (CSR) use a width of their own and expand once in finish.
  virtual size_t accumulator_width() const { return dim_; }
  virtual void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                          size_t count) const;
  /// out [M, D] += finished accumulators.
  virtual void finish(float* out, const float* acc, size_t queries) const;

  virtual std::unique_ptr<CodedRows> clone() const = 0;
  /// All that these rows hold; loading: into rows that were just made, with nothing appended.
  virtual void archive(Archive& a) = 0;
  /// Used bytes, without slack; shared tables are the codec's.
  virtual size_t payload_bytes() const = 0;
  virtual size_t metadata_bytes() const { return 0; }
  /// Bytes of tables that belong to these rows alone (CSR's online atoms); clones may share them.
  virtual size_t table_bytes() const { return 0; }
  /// Bytes allocated (used + slack), as the MemoryCounter sees them.
  virtual size_t allocated_bytes() const = 0;

  size_t dim() const { return dim_; }

 protected:
  CodedRows(const Kernels& kernels, size_t dim) : kernels_(&kernels), dim_(dim) {}
  CodedRows(const CodedRows&) = default;
  CodedRows& operator=(const CodedRows&) = delete;

  const Kernels* kernels_;
  size_t dim_;  // D
};

/// The rows to make.
struct RowsRequest {
  Side side = Side::kKeys;
  size_t dim = 0;       // D
  uint32_t head = 0;    ///< KV head, for codecs whose tables differ by head
  size_t max_rows = 0;  ///< the most rows that will be held at once; 0 = unknown
  uint64_t seed = 0;    ///< of the session and, for codecs that draw tables, the layer they are for
  uint32_t layer = 0;
  uint64_t model = 0;  ///< ModelConfig::fingerprint; 0 = not known
};

/// One codec with its parameters for one side of one layer; owns what the rows share.
class Codec {
 public:
  virtual ~Codec() = default;
  /// New rows are appended in multiples of this (KIVI's key groups: 32).
  virtual size_t block_rows() const { return 1; }
  /// True: keys are stored before RoPE and rotated to their position when read.
  virtual bool pre_rope() const { return false; }
  /// Keys: of so many queries behind the sink rows are shown the energy; 0 = of none.
  virtual size_t first_queries() const { return 0; }
  /// Bytes that one row adds (payload + metadata), for budgets and estimates.
  virtual double bytes_per_row(size_t dim) const = 0;
  /// The most that `rows` rows of one head can take. `evicted`: other rows may have gone between
  /// them, so that what a group of rows shares is shared by fewer.
  virtual double most_bytes(size_t rows, size_t dim, bool /*evicted*/) const {
    return static_cast<double>(rows) * bytes_per_row(dim);
  }
  /// Buffers that grow with the rows of a store: allocators round each up. Or more.
  virtual size_t buffers() const { return 8; }
  virtual size_t shared_bytes() const { return 0; }
  /// The same once there are rows of a layer. Throws kInvalidArgument for a request that
  /// make_rows refuses.
  virtual size_t table_bytes(const RowsRequest& /*request*/) const { return 0; }
  /// The most scratch that coding `rows` rows of one head takes.
  virtual size_t coding_bytes(const RowsRequest& /*request*/, size_t /*rows*/) const { return 0; }
  /// Numbers that accumulator_width, or prepared_size per query, may grow by as rows come.
  virtual size_t width_to_come(size_t /*dim*/) const { return 0; }
  /// Throws kInvalidArgument for a context of so many tokens that its rows would be no good in it.
  virtual void check_context(size_t /*tokens*/) const {}
  virtual std::unique_ptr<CodedRows> make_rows(const Context& context,
                                               const RowsRequest& request) const = 0;
};

}  // namespace pith
