// Conversations between memory and their files. Files are written and read by a thread of their
// own, so that answers go on meanwhile; who waits for memory or for a file waits in the queue.

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "serve/scheduler.h"

namespace pith::serve {
namespace {

// A server that ends writes what is idle at once, and other conversations when they are answered.
constexpr std::chrono::milliseconds kMostOnTheWay{1000};

/// Most bytes of a file beside its cache: tokens, header, the ends of sections.
size_t file_bytes(const Session& session) {
  constexpr size_t kHeader = size_t{64} << 10;
  return session.ledger().total_bytes() + session.tokens() * sizeof(int32_t) + kHeader;
}

bool begins(std::span<const int32_t> prompt, std::span<const int32_t> ids) {
  return ids.size() < prompt.size() && std::ranges::equal(ids, prompt.first(ids.size()));
}

}  // namespace

bool IdleSession::saved() const {
  return session && file && file->tokens == session->tokens() &&
         file->ids == digest_of_ids(session->token_ids());
}

IdleSession* Scheduler::find_idle(const std::string& id, const std::string& tenant) {
  const auto found = std::ranges::find_if(idle_, [&](const IdleSession& idle) {
    return idle.id == id && idle.tenant == tenant && idle.held();
  });
  return found == idle_.end() ? nullptr : &*found;
}

void Scheduler::hold(IdleSession session) {
  session.used = std::time(nullptr);
  session.since = jobs_;
  if (const IdleSession* old = find_idle(session.id, session.tenant)) {
    // Its file is of an earlier turn, and good until a later one is written.
    session.file = old->file;
    session.since = old->since;
    std::erase_if(idle_, [&](const IdleSession& other) { return &other == old; });
  }
  idle_.push_back(std::move(session));
  auto in_memory =
      std::ranges::count_if(idle_, [](const IdleSession& i) { return i.session != nullptr; });
  for (auto idle = idle_.begin();
       idle != idle_.end() && in_memory > static_cast<ptrdiff_t>(options_.idle_sessions); ++idle)
    if (idle->session) --in_memory, leave_memory(*idle);
  if (draining_ && files_ && idle_.back().session) leave_memory(idle_.back());
  drop_empty();
}

void Scheduler::drop_empty() {
  std::erase_if(idle_, [](const IdleSession& idle) { return !idle.held(); });
}

void Scheduler::forget(const std::string& id, const std::string& tenant) {
  tree_.forget(tenant, id);
  if (files_) files_->remove({id, tenant, "", 0});
  std::erase_if(idle_, [&](const IdleSession& i) { return i.id == id && i.tenant == tenant; });
}

size_t Scheduler::disk_bytes() const {
  size_t bytes = 0;
  for (const IdleSession& idle : idle_)
    if (idle.file) bytes += idle.file->bytes;
  return bytes;
}

void Scheduler::trim_disk(size_t coming, const IdleSession* keep) {
  size_t bytes = disk_bytes() + coming;
  if (keep && keep->file) bytes -= keep->file->bytes;  // it is replaced
  for (auto idle = idle_.begin(); idle != idle_.end() && bytes > files_->quota(); ++idle) {
    // A conversation that is being written may have its new file already.
    if (!idle->file || &*idle == keep || idle->writing > 0) continue;
    bytes -= idle->file->bytes;
    files_->remove({idle->id, idle->tenant, "", 0});
    idle->file.reset();
    if (!idle->session) ++disk_.dropped;
  }
}

size_t Scheduler::leave_memory(IdleSession& idle) {
  const size_t bytes = idle.session->ledger().total_bytes();
  if (idle.writing > 0) return bytes;
  if (files_ && idle.saved()) {
    idle.session.reset();
    return 0;
  }
  if (!files_ || file_bytes(*idle.session) > files_->quota()) {
    ++disk_.dropped;
    idle.session.reset();
    return 0;
  }
  trim_disk(file_bytes(*idle.session), &idle);
  idle.writing = ++jobs_;
  auto copy = std::make_shared<Session>(idle.session->fork());
  const ConversationName name{idle.id, idle.tenant, idle.policy, idle.used};
  ++writing_;
  disk_thread_.add([this, copy, name, job = jobs_]() mutable {
    ConversationFile file;
    std::string failure;
    const auto start = Clock::now();
    try {
      file = files_->write(*copy, name);
    } catch (const std::exception& e) {
      failure = e.what();
    }
    metrics_.saved(std::chrono::duration<double>(Clock::now() - start).count());
    copy.reset();  // it shares rows that are to be free when the scheduler hears of it
    post([this, name, file, failure, job] { written(name, job, file, failure); });
  });
  return bytes;
}

void Scheduler::written(const ConversationName& name, uint64_t job, const ConversationFile& file,
                        const std::string& failure) {
  --writing_;
  IdleSession* idle = find_idle(name.id, name.tenant);
  if (idle == nullptr || job <= idle->since) {  // it was forgotten meanwhile
    if (failure.empty()) files_->remove(name);
    return;
  }
  const bool newest = idle->writing == job;
  if (newest) idle->writing = 0;
  if (!failure.empty()) {
    disk_failure_ = failure;
    ++disk_.failures;
    return;
  }
  disk_failure_.clear();
  ++disk_.writes;
  idle->file = file;
  if (newest) idle->session.reset();
  trim_disk(0, nullptr);
  drop_empty();
}

// Memory reserved for running sessions counts as taken.
size_t Scheduler::lacking(size_t bytes) const {
  const Runtime& runtime = *engine_->runtime();
  const size_t total = runtime.bytes_in_use() + runtime.bytes_reserved() + bytes;
  return total > options_.memory ? total - options_.memory : 0;
}

void Scheduler::reserve(Session& session, const Task& task) const {
  // The last token of an answer is not appended.
  const size_t all = std::min(task.prompt.size() + task.max_tokens, session.context());
  session.reserve(all - session.tokens());
}

bool Scheduler::set_aside(Waiting& waiting) {
  try {
    while (waiting.rooms.size() < waiting.task->choices) {
      waiting.rooms.emplace_back(engine_, waiting.task->session);
      reserve(waiting.rooms.back(), *waiting.task);
    }
    return true;
  } catch (const Error& error) {
    waiting.rooms.clear();
    return error.code() != ErrorCode::kOutOfMemory;  // whoever begins it meets the others again
  }
}

// The most that an engine's own buffers grow by where one session more has room.
size_t Scheduler::step_bytes() const {
  const ModelConfig& config = engine_->model()->config();
  return 4 * engine_->options().chunk * sizeof(float) *
         static_cast<size_t>(config.query_heads * config.head_dim);
}

void Scheduler::keep(const Running& r) {
  tree_.keep(*r.session, r.prompt());
  if (const size_t lack = lacking(step_bytes())) tree_.shrink(lack);
}

Scheduler::Room Scheduler::make_room(Waiting& waiting) {
  for (;;) {
    size_t lack = lacking(waiting.bytes);
    if (lack == 0) {
      if (set_aside(waiting)) return Room::kThere;
      lack = step_bytes();
    }
    if (tree_.shrink(lack) > 0) continue;
    // Those used least recently go first, and no more than have to; the task's own is the last.
    const Own own = own_state(*waiting.task);
    bool freed = false;
    size_t coming = 0;
    const auto leave = [&](IdleSession& idle) {
      if (!idle.session || (idle.writing == 0 && !disk_failure_.empty() && !idle.saved())) return;
      const size_t soon = leave_memory(idle);
      coming += soon;
      freed = soon == 0;
    };
    for (auto idle = idle_.begin(); idle != idle_.end() && !freed && coming < lack; ++idle)
      if (&*idle != own.idle) leave(*idle);
    if (!freed && coming == 0 && running_.empty() && fetching_ == 0 && own.idle) leave(*own.idle);
    drop_empty();
    if (freed) continue;
    return coming > 0 ? Room::kSoon : Room::kNone;
  }
}

Scheduler::Own Scheduler::own_state(const Task& task) {
  if (!task.reuse || task.conversation.empty()) return {};
  IdleSession* idle = find_idle(task.conversation, task.tenant);
  if (idle == nullptr || idle->policy != task.policy) return {};
  const std::span<const int32_t> prompt(task.prompt);
  Own own;
  if (idle->session && begins(prompt, idle->session->token_ids()))
    own = {idle, idle->session->tokens(), false};
  else if (idle->file && idle->file->tokens < prompt.size() &&
           digest_of_ids(prompt.first(idle->file->tokens)) == idle->file->ids)
    own = {idle, idle->file->tokens, true};
  // Of states that are as long, an answer's is its own conversation's.
  const Prompt asked{task.prompt, task.fork_points, task.tenant, task.conversation};
  return own.tokens >= tree_.longest(task.session, asked) ? own : Own{};
}

bool Scheduler::take_over(Waiting& waiting) {
  const Task& task = *waiting.task;
  if (waiting.looked || !files_ || !task.reuse || task.conversation.empty()) return true;
  const IdleSession* here = find_idle(task.conversation, task.tenant);
  size_t tokens = 0;
  if (here) {
    tokens = here->session ? here->session->tokens() : here->file->tokens;
    if (here->writing > 0) tokens = SIZE_MAX;
  }
  if (auto found = files_->take({task.conversation, task.tenant, task.policy, 0}, tokens)) {
    if (here) std::erase_if(idle_, [&](const IdleSession& i) { return &i == here; });
    auto& [name, file] = *found;
    IdleSession idle{name.id, name.tenant, name.policy, nullptr, std::time(nullptr), file};
    idle.since = jobs_;
    idle_.push_back(std::move(idle));
    ++disk_.taken_over;
    trim_disk(0, nullptr);
    drop_empty();
  } else if (files_->others_leave() && Clock::now() - waiting.since < kMostOnTheWay) {
    return false;
  }
  waiting.looked = true;
  return true;
}

bool Scheduler::fetch(Waiting& waiting) {
  if (waiting.fetch == Waiting::Fetch::kFailed || waiting.rooms.empty()) return false;
  const Own own = own_state(*waiting.task);
  if (own.idle == nullptr || !own.on_disk) return false;
  const ConversationName name{own.idle->id, own.idle->tenant, own.idle->policy, own.idle->used};
  waiting.fetch = Waiting::Fetch::kReading;
  auto room = std::make_shared<Session>(std::move(waiting.rooms.front()));
  waiting.rooms.erase(waiting.rooms.begin());
  ++fetching_;
  disk_thread_.add([this, name, room, task = waiting.task, number = waiting.number] {
    std::shared_ptr<Session> session;
    std::string failure;
    bool usable = true;
    try {
      session = std::make_shared<Session>(files_->read(std::move(*room), name));
      if (!begins(task->prompt, session->token_ids())) {
        session.reset();
        failure = "it is of another turn by now";
      }
    } catch (const Error& e) {
      failure = e.what();
      usable = e.code() == ErrorCode::kOutOfMemory;
      if (e.code() == ErrorCode::kCorrupt) files_->set_aside(name);
    } catch (const std::exception& e) {
      failure = e.what();
    }
    post([this, name, session, failure, usable, number] {
      if (!usable) lose_file(name);
      fetched(session, failure, number);
    });
  });
  return true;
}

void Scheduler::lose_file(const ConversationName& name) {
  IdleSession* idle = find_idle(name.id, name.tenant);
  if (idle == nullptr) return;
  idle->file.reset();
  if (!idle->session) std::erase_if(idle_, [&](const IdleSession& i) { return &i == idle; });
}

void Scheduler::fetched(std::shared_ptr<Session> session, const std::string& failure,
                        uint64_t number) {
  --fetching_;
  ++(session ? disk_.reads : disk_.failures);
  const auto waits =
      std::ranges::find_if(waiting_, [&](const Waiting& w) { return w.number == number; });
  if (waits == waiting_.end()) return;  // its client has gone
  waits->fetch = session ? Waiting::Fetch::kRead : Waiting::Fetch::kFailed;
  waits->fetch_failure = failure;
  waits->fetched = std::move(session);
}

Server::Parked Scheduler::park() {
  Server::Parked out;
  if (!files_) return out;
  call([&] {
    disk_failure_.clear();
    for (IdleSession& idle : idle_)
      if (idle.session) leave_memory(idle);
    drop_empty();
  });
  for (bool busy = true; busy;) {
    call([&] { busy = writing_ > 0; });
    if (busy) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  call([&] {
    for (const IdleSession& idle : idle_) ++(idle.session ? out.lost : out.kept);
    out.failure = disk_failure_;
  });
  return out;
}

}  // namespace pith::serve
