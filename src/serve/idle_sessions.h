#pragma once
// Named conversations between two requests: in memory, those used least recently in files.

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "pith_serve/serve.h"
#include "serve/session_spill.h"

namespace pith::serve {

/// A conversation in memory, in a file, or in both. The file may be of an earlier turn.
struct IdleSession {
  std::string id, tenant, policy;
  std::shared_ptr<const Session> session;  ///< null: in its file alone
  int64_t used = 0;                        ///< unix seconds
  std::optional<ConversationFile> file = {};
  uint64_t writing = 0;  ///< the job that writes the session; 0: none
  uint64_t since = 0;    ///< later jobs alone are of this conversation

  size_t tokens() const { return session ? session->tokens() : file->tokens; }
  bool held() const { return session || file; }
  /// True if all that is in memory is in the file too.
  bool saved() const;
};

/// On the scheduler's thread.
class IdleSessions {
 public:
  /// Begins with the conversations that have files. `files`: null: memory alone. `most`: in memory.
  IdleSessions(std::shared_ptr<ConversationFiles> files, size_t most, SessionSpill& spill);

  const std::list<IdleSession>& all() const { return list_; }
  IdleSession* find(const std::string& id, const std::string& tenant);
  /// Keeps a session under its name, where its conversation's next request finds it. `leaving`: the
  /// server is about to end, and writes it at once.
  void hold(IdleSession session, bool leaving);
  /// Drops a conversation in memory and on disk.
  void forget(const std::string& id, const std::string& tenant);

  /// Keeps a conversation of which a file has come.
  void adopt(const ConversationName& name, const ConversationFile& file);
  /// Reports a file that was read; not `usable`: it is of no use to anybody.
  void was_read(const ConversationName& name, bool good, bool usable);

  struct Freed {
    bool now = false;   ///< a conversation's memory is free
    size_t coming = 0;  ///< bytes that will be when files are written
  };
  /// Takes conversations out of memory until one is free or `bytes` will be: those used least
  /// recently first, and never `own`.
  Freed free(size_t bytes, const IdleSession* own);
  /// Takes that one out of memory.
  Freed free(IdleSession& idle);
  /// Drops conversations of which nothing is held any more: to be called after free().
  void drop_empty();
  /// Writes all that is in memory alone.
  void park();
  /// How many are in files and how many in memory alone, with the reason.
  Server::Parked parked() const;
  /// Removes files that the quota has no room for.
  void trim_disk() { trim_disk(0, nullptr), drop_empty(); }

  /// Of the last write; "": it is well, or nobody has tried since.
  const std::string& disk_failure() const { return disk_failure_; }
  void try_disk_again() { disk_failure_.clear(); }
  /// Counts whatever may free memory or let a conversation leave it.
  uint64_t changes() const { return changes_; }
  void report(Gauges& gauges) const;

 private:
  /// Takes a conversation out of memory. The bytes that will be free when its file is written; 0:
  /// they are free now.
  size_t leave_memory(IdleSession& idle);
  /// As free() does, but for one that a failing disk would lose.
  void leave_if_safe(IdleSession& idle, Freed& freed);
  void written(const ConversationName& name, uint64_t job, const ConversationFile& file,
               const std::string& failure);
  size_t disk_bytes() const;
  /// Removes files, those used least recently first, until `coming` more bytes fit in place of
  /// `keep`'s.
  void trim_disk(size_t coming, const IdleSession* keep);

  const std::shared_ptr<ConversationFiles> files_;
  const size_t most_;
  SessionSpill& spill_;
  std::list<IdleSession> list_;  // least recently used first
  uint64_t jobs_ = 0;            // of writing, so far
  uint64_t changes_ = 0;
  std::string disk_failure_;
  Gauges::Disk disk_;
};

}  // namespace pith::serve
