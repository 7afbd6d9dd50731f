#pragma once
// Memory for what comes: room that is set aside, and what leaves memory for it.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pith/engine.h"
#include "pith/prefix_tree.h"
#include "serve/continuations.h"
#include "serve/idle_sessions.h"
#include "serve/refusal.h"
#include "serve/task.h"

namespace pith::serve {

/// On the scheduler's thread.
class MemoryBudget {
 public:
  /// `limit`: bytes of all caches and scratch.
  MemoryBudget(std::shared_ptr<Engine> engine, size_t limit, PrefixTree& tree, IdleSessions& idle,
               const Continuations& continuations);

  enum class Room : uint8_t { kThere, kSoon, kNone };
  /// An answer without room, and what it depends on.
  struct Lack {
    Room room;
    size_t held;       // bytes of all sessions
    uint64_t changes;  // of idle conversations
    bool runs;
  };
  /// Makes `rooms`, empty sessions with room for all that a task's choices come to. Snapshots go
  /// first, then idle conversations; the task's own is the last, and only where nothing else
  /// `runs`. kSoon: conversations are being written. `last`: this task's last answer, which stands
  /// until something was given back, since a try makes sessions and drops them.
  Room make_room(std::vector<Session>& rooms, const Task& task, bool runs,
                 std::optional<Lack>& last);
  /// Room for what a task's session may still come to. Throws kOutOfMemory.
  static void reserve(Session& session, const Task& task);
  /// Keeps a snapshot for prompts that begin alike, if there is room for it.
  void keep(const Session& session, const Prompt& prompt);
  /// True if a work that was refused for lack of memory is repeated. `others`: some run.
  bool comes_again(const Work& work, bool others);
  /// How often make_room() did not repeat its last answer.
  uint64_t tries() const { return tries_; }
  /// Why there is no room.
  Refusal no_room() const;

 private:
  Room try_room(std::vector<Session>& rooms, const Task& task, bool runs);
  /// Bytes of all sessions, with those set aside for running ones.
  size_t held() const;
  /// Bytes that would have to be freed for so many more.
  size_t lacking(size_t bytes) const;
  /// False: there is no memory for the rooms.
  bool set_aside(std::vector<Session>& rooms, const Task& task) const;

  const std::shared_ptr<Engine> engine_;
  const size_t limit_;
  const size_t step_bytes_;  // the most that an engine's own buffers grow by for a session more
  PrefixTree& tree_;
  IdleSessions& idle_;
  const Continuations& continuations_;
  uint64_t tries_ = 0;
};

}  // namespace pith::serve
