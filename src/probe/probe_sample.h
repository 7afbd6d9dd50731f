#pragma once
// Which rows of one layer the error probe keeps exactly: for each KV head the first four, as heads
// often attend to them above all, and m of the n others, those of the m smallest random words. That
// is a uniform sample without replacement that does not depend on what the policy keeps, nor on the
// device. The rows themselves are kept by whoever has them.
//
// Cost: a random word a row and head; 16 bytes per row kept.

#include <span>
#include <vector>

#include "core/archive.h"
#include "core/philox.h"

namespace pith {

/// The arguments of the draw of a layer's sample.
struct ProbeSampleSite {
  size_t kv_heads = 0;  // G
  int layer = 0;
  uint64_t seed = 0;
  size_t rows = 0;  ///< m
};

class ProbeSample {
 public:
  static constexpr size_t kGroups = 16, kFirst = 4;

  struct Row {
    uint64_t word;
    uint32_t position;
    uint32_t group;  ///< that it is left out with; kGroups: one of the first
  };
  /// Row `token` of those that came is kept at `slot`, for a new one or in place of another.
  struct Entry {
    size_t head, slot, token;
  };

  ProbeSample(MemoryCounter& memory, const ProbeSampleSite& site);

  /// Rows of so many new tokens come, of all KV heads. Replaces `entries`.
  void append(size_t tokens, std::vector<Entry>& entries);

  /// Slots hold positions; words are drawn again. All but the first kFirst are below `tokens`.
  void archive(Archive& a, size_t tokens);
  std::span<const Row> rows(size_t head) const { return heads_[head].rows; }  // [<= kFirst + m]
  size_t most_rows() const { return most_; }                                  ///< of a head
  size_t tokens() const { return tokens_; }
  size_t kv_heads() const { return heads_.size(); }
  /// Rows in a head's sample, and rows that it is drawn from; without the first.
  double drawn() const;
  double open_to_draw() const { return static_cast<double>(tokens_) - kFirst; }

 private:
  struct Head {
    Head(MemoryCounter& memory, const ProbeSampleSite& site, size_t head);
    Philox random;
    Array<Row> rows;     // the first ones first
    size_t largest = 0;  // the drawn row of the largest word, once there are m
  };
  static Row row_of(const Head& head, size_t position);
  void find_largest(Head& head) const;
  /// Whether the row of `position` is kept.
  bool offer(Head& head, size_t position) const;

  size_t most_;              // kFirst + m
  std::vector<Head> heads_;  // [G]
  size_t tokens_ = 0;
};

/// Which row of a head's sample one that is held is, by its position.
class SampleFinder {
 public:
  SampleFinder(std::span<const ProbeSample::Row> sample, size_t tokens) : at_(tokens, kNone) {
    for (size_t i = 0; i < sample.size(); ++i) at_[sample[i].position] = static_cast<int32_t>(i);
  }
  static constexpr int32_t kNone = -1;
  int32_t at(int64_t position) const {
    const auto i = static_cast<size_t>(position);
    return i < at_.size() ? at_[i] : kNone;  // a step's own row is not drawn yet
  }

 private:
  std::vector<int32_t> at_;  // [tokens]
};

}  // namespace pith
