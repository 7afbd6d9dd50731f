#pragma once

#include <cstddef>
#include <memory>

#include "serve/conversation_files.h"

namespace pith::serve {

struct SchedulerOptions {
  size_t parallel = 16;  ///< answers at once
  size_t queue = 256;    ///< requests that wait
  double queue_seconds = 60;
  size_t memory = 0;  ///< bytes of all caches and scratch: the engine's limit from then on
  /// Of the clock for reading prompts while answers are being made; in (0, 1].
  double prefill_share = 0.5;
  size_t snapshot_bytes = 0, largest_snapshot = 0;  ///< of the prefix tree; 0: none is kept
  size_t idle_sessions = 1024;                      ///< named ones that memory holds at most
  std::shared_ptr<ConversationFiles> files;         ///< for idle ones; null: memory alone
};

}  // namespace pith::serve
