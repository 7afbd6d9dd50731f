#pragma once
// Carries out a plan's steps on the bodies of some KV heads: the moves and what is dropped are
// here, the rows that a step names come from the selector's chooser or halver.

#include <array>
#include <span>
#include <vector>

#include "select/selector.h"

namespace pith {

class BodySteps {
 public:
  BodySteps(const Context& context, const SelectorParts& selector, std::span<HeadBody> bodies);

  /// Rows, one entry per head, come to stand in kLeaving, where none are left.
  void bring(std::vector<NewRows> rows);
  /// Steps that touch neither sink, protected rows nor window.
  void run(std::span<const Step> steps);

 private:
  /// Rows that stand in kLeaving or kEvicted, and how many of them steps have taken.
  struct Incoming {
    std::vector<NewRows> rows;  // [heads]
    size_t taken = 0;
  };
  /// The parts of one head of kEvicted.
  struct Evicted {
    explicit Evicted(MemoryCounter& memory)
        : k(memory, MemoryKind::kScratch), v(memory, MemoryKind::kScratch) {}
    Array<float> k, v;               // [rows, D]
    std::vector<int64_t> positions;  // [rows]
    std::vector<float> mass;         // [rows]
  };

  Incoming& incoming(Zone zone) { return zone == Zone::kEvicted ? evicted_ : leaving_; }
  void run_each(std::span<const Step> steps);
  void run_one(const Step& step, size_t head, const NewRows& rows) const;
  void select(const Step& step);
  void split(const Step& step);
  NewRows take_lightest(RowStore& store, const Step& step, Evicted& out) const;
  void forget(const Step& step);
  void weigh(const Step& step);

  Context context_;
  const SelectorParts& selector_;
  std::span<HeadBody> bodies_;
  Incoming leaving_, evicted_;
  std::vector<Evicted> evicted_rows_;  // [heads]
};

}  // namespace pith
