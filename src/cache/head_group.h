#pragma once
// The KV heads of one layer that share a policy rule: their sinks, bodies and windows, one plan
// whose steps they carry out, one selector and one pair of codecs.

#include <memory>
#include <vector>

#include "attend/attend.h"
#include "cache/host_tables.h"
#include "cache/pass_room.h"
#include "cache/stream_notes.h"
#include "plan/plan.h"
#include "policy/resolved.h"
#include "rows/cpu/window_ring.h"
#include "select/body_steps.h"

namespace pith {

/// Rows on their way from a window into a body, while a step lasts.
struct Staging {
  explicit Staging(MemoryCounter& memory)
      : k(memory, MemoryKind::kStaging),
        v(memory, MemoryKind::kStaging),
        mass(memory, MemoryKind::kStaging) {}
  Array<float> k, v;               // [heads, rows, D]
  Array<float> mass;               // [heads, rows]
  std::vector<int64_t> positions;  // [rows], if protected rows lie in between
};

/// New rows of all KV heads of a layer.
struct LayerRows {
  const float* k = nullptr;     // [T, G, D]
  const float* v = nullptr;     // [T, G, D]
  const float* mass = nullptr;  // [G, T], if somebody asked
  size_t tokens = 0;            // T
};

/// Queries that stand behind `before` tokens that come with them, of `all` that come.
struct QueryPart {
  QueryBlock queries;
  size_t before = 0, all = 0;
};

class HeadGroup {
 public:
  /// `tables` may be null, and `rope` if none is known: throws kUnsupported if one is needed then.
  HeadGroup(const Context& context, const CohortPolicy& policy, const Rope* rope,
            HostTables* tables);
  HeadGroup(const HeadGroup& other);
  HeadGroup(HeadGroup&&) = default;

  const std::vector<int>& heads() const { return heads_; }
  /// Keys stand at positions inside the cache instead of their own.
  bool cache_positions() const { return cache_positions_; }
  /// Shows a step's queries to the selector, part by part; returns from how many of the part's last
  /// it wants mass.
  size_t begin_step(const QueryPart& part);
  /// Whether it ever wants any: then rows carry mass.
  bool carries_mass() const { return plan_->mass(1).queries > 0; }
  /// Whether the selector puts a factor on any of the scores of `tokens` queries that stand behind
  /// `before` tokens more.
  bool scales_queries(size_t before, size_t tokens) const;
  /// Puts it on the queries of this group's heads.
  void scale_queries(float* q, const AttendCall& call) const;
  /// Appends what head `h` (index in heads()) holds.
  void add_spans(size_t h, std::vector<Span>& spans);
  /// Replaces the rows to protect; those of tokens already here must not change.
  void protect(const ProtectedRows& rows);
  /// `gathers`: as Plan::append says.
  void append(const LayerRows& rows, size_t kv_heads, Staging& staging, bool gathers = false);
  void end_prefill();
  /// After `tokens` tokens, whose prompts are those of `notes`; loading: into a group that has seen
  /// none, with the rows to protect set.
  void archive(Archive& a, size_t tokens, const StreamNotes& notes);

  HeadRows rows(size_t h);
  /// f32 [rows, D] each <- what they hold, in the order of rows(h); keys after RoPE.
  void read_rows(size_t h, float* k, float* v);
  /// The selector's score of each row of rows(h); infinite for rows that it does not choose among.
  /// Empty from a selector without scores.
  std::vector<double> scores(size_t h);
  Occupancy held(size_t h) const;
  /// Of so many queries, however many rows come.
  BodyWidths widths(size_t queries) const;
  void add_to(Ledger& ledger) const;

 private:
  /// A row and where it lies.
  struct PlacedRow {
    int64_t position;
    float log_weight;
    Role role;
    uint32_t span, row;
  };
  /// Of all spans, by position.
  static std::vector<PlacedRow> placed_rows(std::span<const Span> spans);
  struct Codecs {
    std::shared_ptr<const Codec> key, value;              // of the body
    std::shared_ptr<const Codec> exact_key, exact_value;  // of the sink
  };
  void archive_head(Archive& a, size_t h);
  void make_stores(const CohortPolicy& policy, const Rope* rope, size_t max_rows);
  size_t ordinals() const;
  size_t state_bytes() const;  ///< of the selector, beside the rows
  void add_protected_spans(size_t h, std::vector<Span>& spans);
  /// kAppend: rows [first, first + step.rows) of `in`.
  void bring(const Step& step, const LayerRows& in, size_t first, size_t kv_heads, BodySteps& body);
  /// `count` rows leave the windows.
  void leave(size_t count, Staging& staging, BodySteps& body);
  NewRows rows_of(const LayerRows& rows, int head, size_t first, size_t count,
                  size_t kv_heads) const;

  Context context_;
  std::vector<int> heads_;
  size_t dim_;  // D
  Codecs codecs_;
  SelectorParts selector_;
  std::optional<Plan> plan_;
  const Rope* rope_;
  bool cache_positions_ = false;
  bool forgets_ = false;             ///< the layer has a sliding window of its own
  size_t tokens_ = 0;                ///< appended so far
  std::vector<RowStore> sinks_;      // [heads]
  std::vector<RowStore> protected_;  // [heads] protected rows; empty while there are none
  std::vector<HeadBody> bodies_;     // [heads]
  std::vector<WindowRing> windows_;  // [heads]
};

}  // namespace pith
