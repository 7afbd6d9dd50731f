#pragma once
// Reads prompts that begin alike once: snapshots of sessions by their tokens, for one engine. A
// compressed cache depends on everything that it has seen, so a part of it is not the cache of a
// shorter text. The tree therefore keeps whole sessions at fork points, and a new session continues
// from one only with exactly the same tokens and options.
//
//   PrefixTree tree(engine, {.max_bytes = size_t{4} << 30});
//   Session session = tree.begin(options, prompt);   // from the longest snapshot
//   tree.read(session, prompt);                      // the rest; keeps fork points
//   ... sample, decode ...
//   tree.keep(session, prompt);                      // for this conversation's next turn
//
// A session from a snapshot gives the same bits as one that read the whole prompt: prompts are
// split into the same pieces whether or not snapshots exist, and snapshots of other splits are not
// used (docs/decisions/0197).
//
// Threads: any number may call a tree. Nobody else may use a session that is passed to it during
// the call.

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
  size_t max_snapshot_bytes = 0;  ///< larger snapshots are not kept; 0: max_bytes
  size_t answers = 2;             ///< snapshots after answers per conversation, the newest
};

/// A prompt: all tokens of a conversation so far, including answers.
struct Prompt {
  std::span<const int32_t> tokens = {};
  /// Numbers of tokens after which prompts may branch off, ascending: after the system prompt,
  /// before the last turn. They must depend on the tokens alone, not on the tree's contents.
  std::span<const size_t> fork_points = {};
  /// Snapshots are shared within a tenant only. Add to the name what tokens depend on besides the
  /// text (a chat template).
  std::string tenant = {};
  /// Snapshots after answers are found under this name only; "": none.
  std::string conversation = {};
};

/// Shorter pieces are joined with the next: selectors select by a piece's last queries.
inline constexpr size_t kLeastPiece = 64;

/// The ends of a prompt's pieces, as numbers of tokens; the last is the prompt's end. `from`:
/// tokens that its session has seen. Append the last piece with Append::kPromptEnds, all others
/// with kMore. Throws kInvalidArgument for fork points that do not ascend.
std::vector<size_t> prompt_pieces(const Prompt& prompt, size_t from = 0);

/// Splits a prompt into works of one chunk, as PrefixTree::read and Session::append do: for
/// programs that let other sessions decode between chunks. The prompt's tokens must outlive it.
/// Under prompt=exact a work is a piece, and under prompt=once the prompt, without fork points.
///
///   Session session = tree.begin(options, prompt);
///   PromptReader reader(session, prompt);
///   while (!reader.done()) {
///     Work work = reader.next(session);
///     engine->step({&work, 1});                          // ... among others
///     if (work.failure) ...
///     if (work.goes_on) continue;                         // only if it has a slice
///     if (reader.took(work)) tree.keep(session, prompt);  // a fork point
///   }
class PromptReader {
 public:
  /// Begins at the first token of the prompt that `session` has not seen. Throws kInvalidArgument
  /// for a session that has seen other tokens, or all of the prompt, and for fork points that do
  /// not ascend.
  PromptReader(const Session& session, const Prompt& prompt);

  bool done() const { return at_ == tokens_.size(); }
  size_t at() const { return at_; }  ///< tokens read
  /// The next chunk as a work for `session`. Repeats until took() is called.
  Work next(Session& session) const;
  /// Reports a finished work. True at a fork point, where the session should be kept.
  bool took(const Work& work);

 private:
  size_t piece_end() const;

  std::shared_ptr<const Engine> engine_;
  std::span<const int32_t> tokens_;
  PromptReading reading_;
  std::vector<size_t> ends_;  // of the pieces
  size_t at_;
};

/// The snapshot that a session began with.
struct Reuse {
  enum class Kind : uint8_t {
    kNone,
    kPrompt,  ///< in the middle of a prompt
    kAnswer   ///< after an answer of its own conversation
  };
  Kind kind = Kind::kNone;
  size_t tokens = 0;        ///< tokens that need not be read
  std::string reason = {};  ///< why there are not more
};

class PrefixTree {
 public:
  PrefixTree(std::shared_ptr<Engine> engine, const PrefixTreeOptions& options);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// A session from the longest snapshot of the prompt; at least one token is left to read.
  /// `reuse` (may be null) describes it. Evicts snapshots if memory is short.
  /// Throws as Session's constructor and fork do.
  Session begin(const SessionOptions& options, const Prompt& prompt, Reuse* reuse = nullptr);

  /// Appends the rest of the prompt piece by piece and keeps the session at each fork point. Throws
  /// kInvalidArgument for a session that has seen other tokens or all of the prompt, and as
  /// Session::append does. If `progress` returns false, the tokens of finished chunks stay, or of
  /// finished pieces.
  void read(Session& session, const Prompt& prompt, const Progress& progress = {});

  /// Keeps a copy of the session: in the middle of a prompt for every prompt with the same tokens,
  /// after an answer for the same conversation. Returns false if it exceeds the limits or there is
  /// no memory.
  /// Throws kInvalidArgument for a session of another engine, an empty one, and one after an answer
  /// if the prompt names no conversation; kInternal for a failed session.
  bool keep(const Session& session, const Prompt& prompt);

  /// The tokens of the snapshot that begin() would continue from; 0: none.
  size_t longest(const SessionOptions& options, const Prompt& prompt) const;

  /// Drops what is a conversation's own: its snapshots after answers, and those of prompts that no
  /// other conversation has kept or continued from. Returns their bytes.
  size_t forget(const std::string& tenant, const std::string& conversation);

  /// Evicts snapshots, those of least use per byte first, until `bytes` are free or only snapshots
  /// that are being copied remain. Returns the bytes that became free.
  size_t shrink(size_t bytes);
  void clear() { shrink(SIZE_MAX); }

  struct Statistics {
    size_t snapshots = 0, bytes = 0;            ///< kept now
    uint64_t prompt_hits = 0, answer_hits = 0;  ///< sessions that began with a snapshot
    uint64_t misses = 0;                        ///< sessions that began empty
    uint64_t tokens_reused = 0;                 ///< tokens that were not read again
    uint64_t kept = 0, evicted = 0, too_large = 0;
  };
  Statistics statistics() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
