#pragma once
// Works for the engine: a pass with a token for each answer, and a chunk of one prompt between
// two passes.

#include <memory>
#include <span>

#include "pith/engine.h"
#include "serve/batch.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"

namespace pith::serve {

/// On the scheduler's thread.
class Passes {
 public:
  /// `prefill_share`: of the clock for reading prompts while answers are being made; in (0, 1].
  Passes(std::shared_ptr<Engine> engine, double prefill_share, Batch& batch, MemoryBudget& memory,
         Metrics& metrics)
      : engine_(std::move(engine)),
        prefill_share_(prefill_share),
        batch_(batch),
        memory_(memory),
        metrics_(metrics) {}

  /// A token for each answer.
  void decode();
  /// A chunk of one prompt, if passes of decode have had their share of the clock.
  void read_chunk();

 private:
  /// Of a task's choice, and its answer's next token.
  struct Choice {
    Running* running;
    size_t index;
  };
  static Work work_of(const Choice& choice);
  void take(const Choice& choice, const Work& work);
  Running* next_to_read() const;
  /// Begins the answers of a task whose prompt is read.
  void begin_answers(Running& r, std::span<const float> logits);

  const std::shared_ptr<Engine> engine_;
  const double prefill_share_;
  Batch& batch_;
  MemoryBudget& memory_;
  Metrics& metrics_;
  double owed_ = 0;  // seconds that passes of decode have before the next chunk
};

}  // namespace pith::serve
