// Which snapshot a prompt continues, and which are evicted. Sessions are copied and dropped outside
// of the lock: both take milliseconds.

#include "pith/prefix_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "pith/error.h"
#include "session/prefix_nodes.h"
#include "session/session_key.h"
#include "session/state.h"

namespace pith {
namespace {

/// Whatever changes a state, or what a session that has it does. The engine is one for all.
SessionKey root_key(const Engine& engine, const SessionOptions& o, const Prompt& prompt) {
  SessionKey key = session_key(engine, o);
  key.emplace_back("protected tokens", to_string(o.protect));
  key.emplace_back("cache limit", std::to_string(o.cache_limit));
  key.emplace_back("error limit", fmt::format("{}", o.error_probe.max_error));
  key.emplace_back("tenant", prompt.tenant);
  return key;
}

const std::string& tenant_of(const SessionKey& key) { return key.back().second; }

/// The bytes of a snapshot of the session.
size_t bytes_of(const Session& session) {
  return session.ledger().total_bytes() + session.tokens() * sizeof(int32_t);
}

/// Of one key: prompts for whoever shares, and each conversation's own after its answers.
struct Root {
  PrefixNode prompts;
  std::map<std::string, PrefixNode> answers;
};
using Roots = std::map<SessionKey, Root>;

}  // namespace

struct Snapshot {
  /// Notes who has kept it or continued from it. Past some it is for all.
  void used_by(const std::string& conversation);

  std::shared_ptr<const Session> session;
  Roots::iterator root;
  std::string conversation;  // after an answer; in the middle of a prompt ""
  std::vector<size_t> cuts;  // of that prompt
  PrefixNode* node = nullptr;
  size_t tokens = 0, bytes = 0;
  uint64_t hits = 0;
  size_t pins = 0;  // copies that are being made of it
  double value = 0;
  bool after_answer = false;
  bool forgotten = false;          // goes when the last copy of it is made
  std::vector<std::string> users;  // conversations; "" = any
};

void Snapshot::used_by(const std::string& user) {
  constexpr size_t kMostUsers = 16;
  if (std::ranges::find(users, user) != users.end() || (!users.empty() && users[0].empty())) return;
  if (user.empty() || users.size() == kMostUsers)
    users = {""};
  else
    users.push_back(user);
}

struct PrefixTree::State {
  using Snapshots = std::list<Snapshot>;
  /// Sessions that go when the lock is not held any more: to be declared before it is taken.
  using Dropped = std::vector<std::shared_ptr<const Session>>;

  State(std::shared_ptr<Engine> e, const PrefixTreeOptions& o)
      : engine(std::move(e)),
        options(o),
        largest(o.max_snapshot_bytes > 0 ? std::min(o.max_bytes, o.max_snapshot_bytes)
                                         : o.max_bytes) {}

  const std::shared_ptr<Engine> engine;
  const PrefixTreeOptions options;
  const size_t largest;
  mutable std::mutex lock;
  Roots roots;
  Snapshots all;        // oldest first
  size_t reserved = 0;  // bytes of copies that are being made to be kept
  double age = 0;       // the value of what was given up last
  Statistics counts;

  /// A snapshot is worth the tokens that it spares, as often as it did, for its bytes; what is not
  /// used falls behind what comes new (GreedyDual-Size). One rate of reading serves all, so that
  /// tokens stand for seconds.
  void refresh(Snapshot& s) const {
    s.value = age + static_cast<double>(1 + s.hits) * static_cast<double>(s.tokens) /
                        static_cast<double>(s.bytes);
  }
  void drop(Snapshots::iterator at, Dropped& dropped);
  /// Drops the one that is worth least; false: none is left but those in use.
  bool evict(Dropped& dropped);
  /// Calls make(), and again with a snapshot less while there is no memory for it.
  Session with_room(const std::function<Session()>& make);
  /// The longest that the prompt continues; null: none. Says in `reuse` why it is not longer.
  Snapshot* find(const SessionKey& key, const Prompt& prompt, Reuse& reuse);
  SessionOptions whole(const SessionOptions& options) const;
  std::string other_key(const SessionKey& key) const;
  bool cut_alike(const Snapshot& s, std::span<const size_t> pieces) const;
  /// Where a session's copy is kept already.
  Snapshot* kept(const Session::State& session, const SessionKey& key, const Prompt& prompt);
  void insert(std::shared_ptr<const Session> session, SessionKey key, const Prompt& prompt,
              Dropped& dropped);
  void forget_old_answers(const Snapshot& newest, Dropped& dropped);
};

void PrefixTree::State::drop(Snapshots::iterator at, Dropped& dropped) {
  counts.bytes -= at->bytes;
  dropped.push_back(std::move(at->session));
  at->node->remove(&*at);
  auto& answers = at->root->second.answers;
  const auto own = answers.find(at->conversation);
  if (own != answers.end() && own->second.empty()) answers.erase(own);
  if (at->root->second.prompts.empty() && answers.empty()) roots.erase(at->root);
  all.erase(at);
}

bool PrefixTree::State::evict(Dropped& dropped) {
  auto least = all.end();
  for (auto s = all.begin(); s != all.end(); ++s)
    if (s->pins == 0 && (least == all.end() || s->value < least->value)) least = s;
  if (least == all.end()) return false;
  age = std::max(age, least->value);
  ++counts.evicted;
  drop(least, dropped);
  return true;
}

SessionOptions PrefixTree::State::whole(const SessionOptions& given) const {
  SessionOptions out = given;
  if (out.context == 0) out.context = static_cast<size_t>(engine->model()->config().context);
  return out;
}

Session PrefixTree::State::with_room(const std::function<Session()>& make) {
  for (;;) {
    try {
      return make();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kOutOfMemory) throw;
      Dropped dropped;
      const std::lock_guard guard(lock);
      if (!evict(dropped)) throw;
    }
  }
}

std::string PrefixTree::State::other_key(const SessionKey& key) const {
  if (roots.empty()) return "nothing is kept";
  std::string nearest;
  size_t fewest = SIZE_MAX;
  for (const auto& [other, root] : roots) {
    std::string names;
    size_t differ = 0;
    for (size_t i = 0; i < key.size(); ++i) {
      if (key[i] == other[i]) continue;
      ++differ;
      names += (names.empty() ? "" : ", ") + key[i].first;
    }
    if (differ < fewest) fewest = differ, nearest = names;
  }
  return fmt::format("what is kept has another {}", nearest);
}

// Pieces ended where the prompt's do, and if the last goes on, a chunk of the prompt's ends there
// too.
bool PrefixTree::State::cut_alike(const Snapshot& s, std::span<const size_t> pieces) const {
  const size_t ended = s.cuts.size();
  if (ended >= pieces.size() || !std::ranges::equal(s.cuts, pieces.first(ended))) return false;
  size_t at = ended > 0 ? s.cuts.back() : 0;
  while (at < s.tokens && at < pieces[ended]) at += engine->next_chunk(pieces[ended] - at);
  return at == s.tokens;
}

Snapshot* PrefixTree::State::find(const SessionKey& key, const Prompt& prompt, Reuse& reuse) {
  const auto root = roots.find(key);
  if (root == roots.end()) {
    reuse.reason = other_key(key);
    return nullptr;
  }
  const std::vector<size_t> pieces = prompt_pieces(prompt);
  Snapshot* best = nullptr;
  size_t agree = 0, cut_elsewhere = 0;
  const auto look = [&](PrefixNode& tree) {
    const size_t same = tree.walk(prompt.tokens, [&](PrefixNode& node) {
      for (Snapshot* s : node.snapshots) {
        if (s->forgotten || s->tokens >= prompt.tokens.size()) continue;
        const bool cut_alike = this->cut_alike(*s, pieces);
        if (!s->after_answer && !cut_alike) {
          cut_elsewhere = std::max(cut_elsewhere, s->tokens);
        } else if (!best || s->tokens >= best->tokens) {
          best = s;
        }
      }
    });
    agree = std::max(agree, same);
  };
  look(root->second.prompts);
  const auto own = root->second.answers.find(prompt.conversation);
  if (own != root->second.answers.end()) look(own->second);
  if (cut_elsewhere > (best ? best->tokens : 0)) {
    reuse.reason = fmt::format("a prompt of the same {} tokens was cut elsewhere", cut_elsewhere);
  } else {
    reuse.reason = fmt::format(
        "{} of {} tokens are in kept prompts; the last snapshot among them "
        "has {}",
        agree, prompt.tokens.size(), best ? best->tokens : 0);
  }
  return best;
}

Snapshot* PrefixTree::State::kept(const Session::State& session, const SessionKey& key,
                                  const Prompt& prompt) {
  const auto root = roots.find(key);
  if (root == roots.end()) return nullptr;
  PrefixNode* tree = &root->second.prompts;
  if (!session.in_prompt) {
    const auto own = root->second.answers.find(prompt.conversation);
    if (own == root->second.answers.end()) return nullptr;
    tree = &own->second;
  }
  Snapshot* found = nullptr;
  tree->walk(*session.seen, [&](PrefixNode& node) {
    for (Snapshot* s : node.snapshots)
      if (!s->forgotten && s->tokens == session.seen->size() && s->cuts == session.cuts) found = s;
  });
  return found;
}

void PrefixTree::State::forget_old_answers(const Snapshot& newest, Dropped& dropped) {
  size_t there = 0;
  for (const Snapshot& s : all)
    there += s.after_answer && s.root == newest.root && s.conversation == newest.conversation;
  for (auto s = all.begin(); s != all.end() && there > std::max<size_t>(options.answers, 1);) {
    const auto next = std::next(s);
    if (&*s != &newest && s->pins == 0 && s->after_answer && s->root == newest.root &&
        s->conversation == newest.conversation) {
      drop(s, dropped);
      --there;
    }
    s = next;
  }
}

void PrefixTree::State::insert(std::shared_ptr<const Session> session, SessionKey key,
                               const Prompt& prompt, Dropped& dropped) {
  const Session::State& state = *session->state_;
  if (Snapshot* there = kept(state, key, prompt)) {
    if (state.in_prompt) {  // another thread was quicker
      there->used_by(prompt.conversation);
      dropped.push_back(std::move(session));
      return;
    }
    // The same tokens, but the prompts of its conversation may have ended elsewhere.
    const auto old = std::ranges::find_if(all, [&](const Snapshot& s) { return &s == there; });
    if (old->pins == 0) drop(old, dropped);
  }
  const auto root = roots.try_emplace(std::move(key)).first;
  PrefixNode& tree =
      state.in_prompt ? root->second.prompts : root->second.answers[prompt.conversation];
  Snapshot s;
  s.root = root;
  s.conversation = state.in_prompt ? "" : prompt.conversation;
  s.cuts = state.cuts;
  s.node = &tree.at(*state.seen);
  s.tokens = state.seen->size();
  s.bytes = bytes_of(*session);
  s.after_answer = !state.in_prompt;
  s.used_by(prompt.conversation);
  s.session = std::move(session);
  refresh(s);
  counts.bytes += s.bytes;
  ++counts.kept;
  all.push_back(std::move(s));
  all.back().node->snapshots.push_back(&all.back());
  if (all.back().after_answer) forget_old_answers(all.back(), dropped);
}

PrefixTree::PrefixTree(std::shared_ptr<Engine> engine, const PrefixTreeOptions& options)
    : state_(std::make_unique<State>(std::move(engine), options)) {}
PrefixTree::~PrefixTree() = default;

Session PrefixTree::begin(const SessionOptions& options, const Prompt& prompt, Reuse* reuse) {
  State& s = *state_;
  const SessionOptions whole = s.whole(options);
  const SessionKey key = root_key(*s.engine, whole, prompt);
  Reuse said;
  Snapshot* found = nullptr;
  std::shared_ptr<const Session> from;
  {
    const std::lock_guard guard(s.lock);
    found = s.find(key, prompt, said);
    if (found) {
      ++found->hits, ++found->pins;
      found->used_by(prompt.conversation);
      s.refresh(*found);
      from = found->session;
      said.kind = found->after_answer ? Reuse::Kind::kAnswer : Reuse::Kind::kPrompt;
      said.tokens = found->tokens;
      s.counts.tokens_reused += found->tokens;
    }
    ++(!found                ? s.counts.misses
       : found->after_answer ? s.counts.answer_hits
                             : s.counts.prompt_hits);
  }
  const auto unpin = [&](void*) {
    State::Dropped dropped;
    const std::lock_guard guard(s.lock);
    if (--found->pins > 0 || !found->forgotten) return;
    s.drop(std::ranges::find_if(s.all, [&](const Snapshot& o) { return &o == found; }), dropped);
  };
  const std::unique_ptr<void, decltype(unpin)> pin(found, unpin);
  if (reuse) *reuse = said;
  return s.with_room([&] { return from ? from->fork(Copy::kNow) : Session(s.engine, whole); });
}

void PrefixTree::read(Session& session, const Prompt& prompt, const Progress& progress) {
  const size_t seen = session.tokens();
  const size_t all = prompt.tokens.size() - seen;
  for (PromptReader reader(session, prompt); !reader.done();) {
    const Work work = reader.next(session);
    const size_t before = session.tokens() - seen;
    bool goes_on = true;
    // A work is a chunk, unless it is read exactly: then it is broken off by what watches it.
    Progress watch;
    if (progress)
      watch = [&](size_t done, size_t) { return goes_on = progress(before + done, all); };
    session.append(work.tokens, work.append, watch);
    if (session.tokens() == seen + before) return;
    const bool fork_point = reader.took(work);
    if (!goes_on) return;
    if (fork_point && session.state_->in_prompt) keep(session, prompt);
  }
}

bool PrefixTree::keep(const Session& session, const Prompt& prompt) {
  State& s = *state_;
  const Session::State& state = there(session.state_);
  state.check_usable();
  if (session.engine() != s.engine)
    throw Error(ErrorCode::kInvalidArgument,
                "a prefix tree was given a session of another engine; it keeps those of the engine "
                "that it was made with");
  if (state.seen->empty())
    throw Error(ErrorCode::kInvalidArgument, "a session that has seen nothing cannot be kept");
  if (!state.in_prompt && prompt.conversation.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "a session after a prompt's end is gone on from by its own conversation alone; "
                "name it in Prompt::conversation");
  SessionKey key = root_key(*s.engine, session.options(), prompt);
  const size_t bytes = bytes_of(session);
  State::Dropped dropped;
  {
    const std::lock_guard guard(s.lock);
    Snapshot* there = state.in_prompt ? s.kept(state, key, prompt) : nullptr;
    if (there) {
      there->used_by(prompt.conversation);
      s.refresh(*there);
      return true;
    }
    bool fits = bytes <= s.largest;
    while (fits && s.counts.bytes + s.reserved + bytes > s.options.max_bytes)
      fits = s.evict(dropped);
    if (!fits) {
      ++s.counts.too_large;
      return false;
    }
    s.reserved += bytes;
  }
  dropped.clear();
  std::shared_ptr<const Session> copy;
  try {
    copy = std::make_shared<const Session>(s.with_room([&] { return session.fork(Copy::kNow); }));
  } catch (const Error& e) {
    const std::lock_guard guard(s.lock);
    s.reserved -= bytes;
    if (e.code() != ErrorCode::kOutOfMemory) throw;
    ++s.counts.too_large;
    return false;
  }
  const std::lock_guard guard(s.lock);
  s.reserved -= bytes;
  s.insert(std::move(copy), std::move(key), prompt, dropped);
  return true;
}

size_t PrefixTree::longest(const SessionOptions& options, const Prompt& prompt) const {
  State& s = *state_;
  const SessionKey key = root_key(*s.engine, s.whole(options), prompt);
  Reuse unsaid;
  const std::lock_guard guard(s.lock);
  const Snapshot* found = s.find(key, prompt, unsaid);
  return found ? found->tokens : 0;
}

size_t PrefixTree::forget(const std::string& tenant, const std::string& conversation) {
  State& s = *state_;
  State::Dropped dropped;
  const std::lock_guard guard(s.lock);
  size_t bytes = 0;
  for (auto at = s.all.begin(); at != s.all.end();) {
    const auto next = std::next(at);
    if (tenant_of(at->root->first) == tenant && !conversation.empty() && !at->forgotten) {
      const bool was_its = std::erase(at->users, conversation) > 0;
      if (was_its && at->users.empty()) {
        bytes += at->bytes;
        at->forgotten = true;
        if (at->pins == 0) s.drop(at, dropped);
      }
    }
    at = next;
  }
  return bytes;
}

size_t PrefixTree::shrink(size_t bytes) {
  State::Dropped dropped;
  const std::lock_guard guard(state_->lock);
  const size_t before = state_->counts.bytes;
  while (before - state_->counts.bytes < bytes && state_->evict(dropped)) {
  }
  return before - state_->counts.bytes;
}

PrefixTree::Statistics PrefixTree::statistics() const {
  const std::lock_guard guard(state_->lock);
  Statistics counts = state_->counts;
  counts.snapshots = state_->all.size();
  return counts;
}

}  // namespace pith
