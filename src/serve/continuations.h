#pragma once
// Where a task's conversation continues: in memory, from its file, from another server's.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "pith/prefix_tree.h"
#include "serve/idle_sessions.h"
#include "serve/session_spill.h"

namespace pith::serve {

/// The state from which a task's conversation continues.
struct OwnState {
  IdleSession* idle = nullptr;  ///< null: the tree has as much
  size_t tokens = 0;
  bool on_disk = false;
};

/// On the scheduler's thread.
class Continuations {
 public:
  Continuations(std::shared_ptr<const ConversationFiles> files, const PrefixTree& tree,
                IdleSessions& idle, SessionSpill& spill)
      : files_(std::move(files)), tree_(tree), idle_(idle), spill_(spill) {}

  OwnState own_state(const Task& task) const;
  /// Looks for a task's conversation at servers that leave; false: its file may be on its way.
  /// `since`: when the task came.
  bool take_over(const Task& task, std::chrono::steady_clock::time_point since);
  /// Begins to read the file of a state into `room`. `then` gets the session, or null and why.
  using Fetched = std::function<void(std::shared_ptr<Session> session, const std::string& failure)>;
  void fetch(const OwnState& own, std::shared_ptr<const Task> task, Session room, Fetched then);
  size_t fetching() const { return spill_.reading(); }

 private:
  const std::shared_ptr<const ConversationFiles> files_;
  const PrefixTree& tree_;
  IdleSessions& idle_;
  SessionSpill& spill_;
};

}  // namespace pith::serve
