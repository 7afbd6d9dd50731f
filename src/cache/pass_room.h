#pragma once
// The memory of a pass, asked before its first row: the rows that are there in the end, and what
// the worst of its layers takes for the time.

#include "attend/attend.h"
#include "policy/resolved.h"

namespace pith {

inline constexpr size_t kStagedRows = 128;  // moved from windows to bodies at a time

/// Tokens that come.
struct PassTokens {
  size_t before = 0;   ///< that the cache has seen
  size_t tokens = 0;   ///< that come
  size_t at_once = 0;  ///< the most of them in one step
  /// They may come as a prompt, however few: policies that read one exactly take more for it.
  bool as_prompt = false;
};

/// The most bytes at any time of a pass, those that are there before it included.
struct PassRoom {
  size_t cache = 0;   ///< under a session's own limit
  size_t beside = 0;  ///< scratch of a step (MemoryCounter::beside)
  size_t total() const { return cache + beside; }
};

/// Sizes that the bodies of some heads ask of attention.
struct BodyWidths {
  size_t stores = 0;    ///< of one head now
  size_t width = 0;     ///< as in AttendRoom
  size_t prepared = 0;  ///< as in AttendRoom
  bool turned = false;
};

/// A layer under way: cohorts add what they may take to what they have in common.
class LayerRoom {
 public:
  LayerRoom(const ResolvedPolicy& policy, const PassTokens& pass, size_t workers);

  void add(const CohortPolicy& c, const ProtectedRows& protect, const BodyWidths& widths);
  /// Bytes of the rows, before or after the pass, whichever is more.
  size_t held() const { return held_; }
  /// Bytes that are there for the time that the layer takes, beside them.
  size_t passing() const { return passing_; }
  size_t beside() const;

 private:
  const CacheShape& shape_;
  PassTokens pass_;
  bool reads_whole_, gathers_;
  size_t workers_;
  size_t held_ = 0, passing_ = 0, staged_ = 0;
  bool scales_ = false;
  AttendRoom attend_;
};

}  // namespace pith
