// Kernels that the host does not have: what its one codec and its tests never ask for.

#include <string>

#include "attend/cuda/level_format.h"
#include "attend/cuda/record_table.h"
#include "cache/cuda/probe_kernels.h"
#include "methods/scores/expected_attention_cuda.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

[[noreturn]] void absent(const char* what) {
  throw Error(ErrorCode::kInternal, std::string(what) + " are not among the host's kernels");
}

constexpr const char* kLevels = "codecs of levels";
constexpr const char* kExpected = "expected_attention's statistics";
constexpr const char* kProbe = "the error probe's sums";

}  // namespace

void score_expected(const SelectSpace&, const JudgedRows&, const ExpectedScores&, cudaStream_t) {
  absent(kExpected);
}
void observe_token_queries(const StepQueries&, const QueryNote*, bool, cudaStream_t) {
  absent(kExpected);
}
void observe_chunk_queries(const StepQueries&, const QueryNote&, bool, cudaStream_t) {
  absent(kExpected);
}

void code_levels(const LevelSide&, const LevelRandom&, const CodeBatch&, std::span<const CodeJob>,
                 cudaStream_t) {
  absent(kLevels);
}
void unpack_levels(const LevelSide&, const UnpackRowsCall&, cudaStream_t) { absent(kLevels); }
void decode_levels(std::span<const LevelFormat>, const DecodeCall&, const DecodeScratch&,
                   cudaStream_t) {
  absent(kLevels);
}
void find_level_records(const LevelFormat&, const FindRecordsCall&, cudaStream_t) {
  absent(kLevels);
}
void move_level_rows(const LevelFormat&, const MoveCodesCall&, cudaStream_t) { absent(kLevels); }
void add_level_mass(const LevelSide&, const TokenMass&, const MassTarget*, cudaStream_t) {
  absent(kLevels);
}

void sum_probe_tiles(const ProbeSumsCall&, cudaStream_t) { absent(kProbe); }
void copy_rows(std::span<const RowCopy>, size_t, cudaStream_t) { absent(kProbe); }

// The codec has no records: there is nothing to copy, and no room to make.
RecordTable::RecordTable(const RecordTable& other)
    : site_(other.site_), bytes_(0), table_(*site_.memory, MemoryKind::kMetadata) {}
void RecordTable::reserve(size_t, const DeviceCodec&, const CodeBlocks&, size_t) {}

}  // namespace pith::cuda
