#pragma once
// The codec contract on the GPU: blocks of 32 rows of all KV heads, coded, attended to and
// unpacked. A codec's row in methods/registry_cuda.cc makes one.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attend/cuda/code_rows.h"
#include "attend/cuda/decode.h"
#include "attend/cuda/mass.h"
#include "core/archive.h"
#include "core/counted_by.h"
#include "kernels/cuda/grouped_layout.h"
#include "kernels/cuda/layer.h"

namespace pith::cuda {

/// Where a layer's tables lie, and the values that they depend on.
struct TableSite {
  CountedBy memory;
  cudaStream_t stream = nullptr;
  int head_dim = 0, kv_heads = 0;
  uint32_t layer = 0;
  uint64_t seed = 0;                                 ///< of the session
  uint64_t model = 0;                                ///< ModelConfig::fingerprint; 0 = not known
  const std::vector<double>* frequencies = nullptr;  ///< [D/2] of RoPE; null = not known
  uint32_t first_head = 0;                           ///< of the kv_heads, in the model
  /// Counts what learn() and code() take for a moment, of all codecs of an engine, one after
  /// another; null: `memory` does.
  MemoryCounter* scratch = nullptr;

  MemoryCounter& of_moments() const { return scratch ? *scratch : *memory; }
};

/// Queries of one step, of the layer's heads, after RoPE.
struct FirstQueries {
  const void* q = nullptr;    // [T, H, D]
  DType dtype = DType::kF16;  ///< kF16 or kBF16
  int tokens = 0, query_heads = 0;
};

class LevelCodec;
class DeviceCodec;

/// Forms of one side's rows that are operands of decode kernels, of which pairs have a kernel of
/// their own (methods/pairs_cuda.cc). kNone: others.
enum class TileForm : uint8_t {
  kNone,
  kF16,
  kBF16,
  kInt8,
  kInt4,
  kRotatedInt4,
  kTurboquant2,
  kTurboquant3,
  kTurboquant4
};

enum class CodePartOf : uint8_t { kKeyCodes, kKeySide, kValueCodes, kValueSide, kRecords };
/// Codes on the host, for DeviceCodec::check_loaded.
struct LoadedCodes {
  CodePartOf part;
  std::span<const std::byte> bytes;  ///< of whole blocks, or records
  int head_dim = 0;
  size_t records = 0;  ///< that there are

  bool keys() const { return part == CodePartOf::kKeyCodes || part == CodePartOf::kKeySide; }
  bool side() const { return part == CodePartOf::kKeySide || part == CodePartOf::kValueSide; }
  template <class T>
  const T* at(size_t byte) const {
    return reinterpret_cast<const T*>(bytes.data() + byte);
  }
};

/// Rows that are no longer among the newest ones are coded anew, in another codec. The codec that
/// says so attends to spans of both: coded as 1, the newest rows', and as 2.
struct AgedCodec {
  std::shared_ptr<const DeviceCodec> young, old;
  size_t rows = 0;  ///< that are young, and up to `step` - 1 more
  size_t step = 0;  ///< rows that age together: whole groups of both
};

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;
  /// The same codes as rows of levels (level_format.h), in which keys of one codec go with values
  /// of any other; null: they are not.
  virtual std::shared_ptr<const LevelCodec> as_levels() const { return nullptr; }
  /// Of keys and of values.
  virtual TileForm tiles() const { return TileForm::kNone; }
  /// Equal names code equally.
  virtual std::string name() const = 0;
  /// The codec with the tables of one layer; null: it has none, and serves as it is.
  virtual std::shared_ptr<const DeviceCodec> with_tables(const TableSite&) const { return nullptr; }
  /// Bytes of its tables.
  virtual size_t shared_bytes() const { return 0; }
  /// The most that learn() and code() take of TableSite::scratch.
  virtual size_t scratch_bytes() const { return 0; }
  /// Its tables are made of the first rows that leave the window, this many, which wait as they are
  /// until then; a multiple of 32.
  virtual size_t learns_from() const { return 0; }
  /// Makes the tables of `rows`. They are made where they are: a captured graph may hold their
  /// addresses. Until then the codec attends to dense spans alone.
  virtual void learn(const RowTarget& /*rows*/, DType /*dtype*/, const RowPositions& /*positions*/,
                     cudaStream_t) const {}
  /// Tables are made with so many queries too, the first behind the sink; 0: with none.
  virtual size_t first_queries() const { return 0; }
  /// Some of those, each of them once, before the rows that the step brings.
  virtual void see_queries(const FirstQueries& /*queries*/, cudaStream_t) const {}
  /// The queries that it has seen, until it has learnt.
  virtual void archive_queries(Archive& /*a*/, cudaStream_t) const {}
  /// Codecs that learn: the same with tables of its own.
  virtual std::shared_ptr<const DeviceCodec> copy(cudaStream_t) const { return nullptr; }
  /// Codecs that learn, once they have: the tables.
  virtual void archive(Archive& /*a*/, cudaStream_t) const {}
  /// Bytes of one part of whole blocks, or of records, as they are loaded: throws, by `a`, where
  /// kernels would read what is not there, or a number that must be finite is not.
  virtual void check_loaded(const Archive& /*a*/, const LoadedCodes& /*codes*/) const {}
  /// DeviceSpan::group_blocks of its spans.
  virtual int group_blocks() const { return 0; }
  /// Rows that it takes at once: 32, or a multiple where more rows share something.
  virtual size_t block_rows() const { return kBlockRows; }
  virtual GroupedBytes block_bytes(int head_dim) const = 0;
  /// Codes rows at many places at once, keys and values.
  virtual void code(const CodeBatch& batch, std::span<const CodeJob> keys,
                    std::span<const CodeJob> values, cudaStream_t stream) const = 0;
  /// Keys, or values, of many places at once, of equally many channels; and of one.
  virtual void unpack_keys_of(std::span<const UnpackRowsCall> calls, cudaStream_t stream) const = 0;
  virtual void unpack_values_of(std::span<const UnpackRowsCall> calls,
                                cudaStream_t stream) const = 0;
  void unpack_keys(const UnpackRowsCall& call, cudaStream_t stream) const {
    unpack_keys_of({&call, 1}, stream);
  }
  void unpack_values(const UnpackRowsCall& call, cudaStream_t stream) const {
    unpack_values_of({&call, 1}, stream);
  }
  /// Null: rows stay in the codec that they came to.
  virtual const AgedCodec* aged() const { return nullptr; }
  /// The same codec for rows that are moved alone: what neighbours share lies beside each of them,
  /// or in a record that each of them names, and keys before RoPE have their positions. Null: its
  /// rows are so already. They share nothing but tables that stay once they are learnt, may be
  /// moved between blocks as they are, and a block may hold fewer than 32; codecs of such rows have
  /// move_rows and add_token_mass.
  virtual std::shared_ptr<const DeviceCodec> with_rows_alone(int /*head_dim*/) const {
    return nullptr;
  }
  /// Bytes of a record of block_rows() rows, which stays while a row names it; 0: there are none.
  virtual size_t record_bytes() const { return 0; }
  /// Codecs with records.
  virtual void find_records(const FindRecordsCall& /*call*/, cudaStream_t) const {}
  /// Rows of many places at once, of equally many channels; and of one.
  virtual void move_rows_of(std::span<const MoveCodesCall> /*calls*/, cudaStream_t) const {}
  void move_rows(const MoveCodesCall& call, cudaStream_t stream) const {
    move_rows_of({&call, 1}, stream);
  }
  /// Keys or values alone, of codecs that have tiles() or, values, that go beside another's keys.
  virtual void move_keys_of(std::span<const MoveCodesCall> /*calls*/, cudaStream_t) const {}
  virtual void move_values_of(std::span<const MoveCodesCall> /*calls*/, cudaStream_t) const {}
  /// As cuda::add_token_mass, for dense rows and coded ones.
  virtual void add_token_mass(const TokenMass& /*call*/, const MassTarget* /*target*/,
                              cudaStream_t) const {}
  /// Decode attention over dense spans and spans of this codec's blocks.
  virtual void attend(const DecodeCall& call, const DecodeScratch& scratch,
                      cudaStream_t stream) const = 0;
};

/// Turns a position [D/2] of RoPE, on the device. Throws kUnsupported if none is known to `what`.
DeviceArray<double> rope_turns(const TableSite& site, const std::string& what);

}  // namespace pith::cuda
