#pragma once
// One prompt and what is wanted after it, ready for the scheduler; and who hears of it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/generate.h"
#include "pith/prefix_tree.h"
#include "serve/events.h"
#include "serve/refusal.h"

namespace pith::serve {

/// The results of a finished task.
struct Totals {
  size_t prompt_tokens = 0, cached_tokens = 0, drawn_tokens = 0;
  double queue_seconds = 0, prompt_seconds = 0, decode_seconds = 0;
  std::string reuse_kind, reuse_reason;
  StopReason reason = StopReason::kMaxTokens;  ///< of the first choice
  size_t bytes = 0, reserved_bytes = 0;        ///< of the first choice's cache; at admission
  double bits = 0;
};

/// Called on the scheduler's thread, which it must not hold; never again after ended() or failed().
class Listener {
 public:
  virtual ~Listener() = default;
  /// The prompt is about to be read.
  virtual void begun(size_t first_choice, size_t choices) = 0;
  virtual void read(size_t done, size_t cached, size_t total) = 0;
  /// Text that is certain, and the tokens that it is made of (where log-probabilities are wanted).
  virtual void piece(size_t choice, std::string_view text, std::span<const TokenShown> tokens,
                     std::span<const int32_t> ids) = 0;
  virtual void choice_ended(size_t choice, StopReason reason) = 0;
  virtual void ended(const Totals& totals) = 0;
  virtual void failed(const Refusal& refusal) = 0;
  /// Nobody waits for it any more.
  virtual bool gone() const = 0;
};

struct Task {
  std::vector<int32_t> prompt;
  std::vector<size_t> fork_points;
  std::string tenant, conversation;
  bool alone = false;  ///< it is refused while another request has its conversation
  std::string policy;  ///< as its key in the books: text, context, seed
  SessionOptions session;
  SamplingOptions sampling;
  size_t choices = 1, first_choice = 0;
  size_t max_tokens = 0;
  int logprobs = -1;
  bool ignore_eos = false, reuse = true;
  std::vector<std::string> stop;
  std::vector<int32_t> ends;
  std::shared_ptr<const AnswerForm> form;  ///< null: free text
  int priority = 0;
  std::shared_ptr<Listener> listener;
};

}  // namespace pith::serve
