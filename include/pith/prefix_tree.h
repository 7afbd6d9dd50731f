#pragma once
// Prompts that begin alike are read once: snapshots of sessions by the tokens they have seen, for
// one engine. A compressed cache is a function of everything that it has seen, so that a part of it
// is not the cache of a shorter text: what is kept are whole sessions at fork points, and only
// exactly equal tokens under exactly equal options go on from them.
//
//   PrefixTree tree(engine, {.max_bytes = size_t{4} << 30});
//   Session session = tree.begin(options, prompt);   // with the longest beginning that is kept
//   tree.read(session, prompt);                      // the rest; keeps what comes by
//   ... sample, decode ...
//   tree.keep(session, prompt);                      // for this conversation's next turn
//
// A session that went on from a snapshot says what it would have said without, bit for bit: a
// prompt is cut into the same pieces whether or not anything is kept, and pieces that were cut
// elsewhere are not gone on from.
//
// Threads: any number may call a tree. A session that is handed to it is the caller's for that
// time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pith/session.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

struct PrefixTreeOptions {
  size_t max_bytes = 0;           ///< of all snapshots together; 0: none is kept
  size_t max_snapshot_bytes = 0;  ///< larger ones are not kept; 0: max_bytes
  size_t answers = 2;  ///< snapshots after answers, the newest of each conversation, that are kept
};

/// A prompt: all tokens of a conversation so far, those of its answers included.
struct Prompt {
  std::span<const int32_t> tokens = {};
  /// After how many tokens others may go on from it, ascending: after the system prompt, before the
  /// last turn. They must follow from the tokens alone, never from what is kept.
  std::span<const size_t> fork_points = {};
  /// Who may share: prompts of other names are never found. What tokens depend on beside the text
  /// (a chat template) belongs here too.
  std::string tenant = {};
  /// What goes on after an answer is found under this name alone; "": nothing.
  std::string conversation = {};
};

/// Pieces of fewer tokens are joined with the next: selectors judge by a prompt's last queries.
inline constexpr size_t kLeastPiece = 64;

/// Where a prompt is cut: after how many tokens each piece ends, the last with the prompt. `from`:
/// how many its session has seen. All pieces but the last come as Append::kMore, the last as
/// kPromptEnds. Throws kInvalidArgument for fork points that do not ascend.
std::vector<size_t> prompt_pieces(const Prompt& prompt, size_t from = 0);

/// A prompt in works of one chunk, cut as PrefixTree::read and Session::append cut it: for whoever
/// runs Engine::step and has other sessions decode in between. The prompt's tokens must outlive it.
///
///   Session session = tree.begin(options, prompt);
///   PromptReader reader(session, prompt);
///   while (!reader.done()) {
///     Work work = reader.next(session);
///     engine->step({&work, 1});                          // ... among others
///     if (work.failure) ...
///     if (reader.took(work)) tree.keep(session, prompt);  // a fork point
///   }
class PromptReader {
 public:
  /// What `session` has not seen of the prompt; it may have stopped anywhere in it. Throws
  /// kInvalidArgument for a session that has seen other tokens, or all of them, and for fork points
  /// that do not ascend.
  PromptReader(const Session& session, const Prompt& prompt);

  bool done() const { return at_ == tokens_.size(); }
  size_t at() const { return at_; }  ///< tokens read
  /// The next chunk, as a work for `session`. The same again until took() is called.
  Work next(Session& session) const;
  /// The work is done. Whether a piece ended at a fork point, where the session is worth keeping.
  bool took(const Work& work);

 private:
  size_t piece_end() const;

  std::shared_ptr<const Engine> engine_;
  std::span<const int32_t> tokens_;
  std::vector<size_t> ends_;  // of the pieces
  size_t at_;
};

/// What a session went on from.
struct Reuse {
  enum class Kind : uint8_t {
    kNone,
    kPrompt,  ///< in the middle of a prompt
    kAnswer   ///< after an answer of its own conversation
  };
  Kind kind = Kind::kNone;
  size_t tokens = 0;        ///< that need not be read
  std::string reason = {};  ///< why it is not more
};

class PrefixTree {
 public:
  PrefixTree(std::shared_ptr<Engine> engine, const PrefixTreeOptions& options);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// A session that has seen the longest beginning of the prompt that is kept, but not all of it:
  /// at least one token is left to be read. Where memory is short, snapshots give way to it. Throws
  /// as Session's constructor and fork do.
  Session begin(const SessionOptions& options, const Prompt& prompt, Reuse* reuse = nullptr);

  /// Appends what the session has not seen of the prompt, piece by piece, and keeps it at each fork
  /// point. Throws kInvalidArgument for a session that has seen other tokens or all of them, and as
  /// Session::append does. If `progress` returns false the tokens of finished chunks stay.
  void read(Session& session, const Prompt& prompt, const Progress& progress = {});

  /// Keeps a copy of the session as it is: in the middle of a prompt for whoever has the same
  /// tokens, after an answer for the same conversation. Whether it is there now: one that is larger
  /// than the limits, or for which there is no memory, is not kept. Throws kInvalidArgument for a
  /// session of another engine, one that has seen nothing, and one after an answer where the prompt
  /// names no conversation; kInternal for one that failed.
  bool keep(const Session& session, const Prompt& prompt);

  /// Drops snapshots, the least worth their bytes first, until `bytes` are free or none is left
  /// that is not being copied. The bytes that became free.
  size_t shrink(size_t bytes);
  void clear() { shrink(SIZE_MAX); }

  struct Statistics {
    size_t snapshots = 0, bytes = 0;            ///< kept now
    uint64_t prompt_hits = 0, answer_hits = 0;  ///< sessions that began with something
    uint64_t misses = 0;                        ///< and with nothing
    uint64_t tokens_reused = 0;                 ///< that were not read again
    uint64_t kept = 0, evicted = 0, too_large = 0;
  };
  Statistics statistics() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
