#pragma once
// The tokens of a forward pass: of one sequence, or one of each of many; where they stand, and the
// angles of RoPE there.

#include <exception>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "core/memory.h"
#include "pith/model.h"

namespace pith {

/// The tokens of one sequence in a pass, at positions first_position, first_position + 1, ...
struct Sequence {
  KvCache* cache = nullptr;
  std::span<const int32_t> tokens;
  int64_t first_position = 0;
  std::exception_ptr failure = nullptr;  ///< what its cache threw; the others go on
};

class PassRows {
 public:
  /// Angles are counted as kScratch, for passes of up to `most` tokens.
  PassRows(const Context& context, const ModelConfig& config, size_t most);

  /// The rows from now on. Throws kInvalidArgument (no tokens, too many, an unknown id).
  void list(std::span<const Sequence> sequences);
  void list(std::span<const int32_t> tokens, int64_t first_position, const LayerRopes& ropes);
  /// Makes room for the angles of so many ropes.
  void prepare(size_t ropes);

  size_t most() const { return most_; }
  size_t count() const { return rows_.size(); }
  /// They are of several sequences.
  bool many() const { return many_; }
  int32_t token(size_t t) const { return rows_[t].token; }
  /// [D/2] of a token, of the RoPE of a layer.
  struct Angles {
    const float *cos = nullptr, *sin = nullptr;
  };
  Angles angles(int layer, size_t t) const;

 private:
  struct Row {
    int32_t token = 0;
    int64_t position = 0;
    const LayerRopes* ropes = nullptr;
  };
  void check(std::span<const int32_t> tokens) const;
  void check_count(size_t tokens) const;
  void add(std::span<const int32_t> tokens, int64_t first_position, const LayerRopes& ropes);
  void find_angles();

  Context context_;
  const ModelConfig& config_;
  size_t most_;
  std::vector<Row> rows_;  // [T]
  bool many_ = false;
  Array<float> cos_, sin_;  // [ropes, T, D/2]
};

}  // namespace pith
