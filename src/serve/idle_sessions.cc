#include "serve/idle_sessions.h"

#include <algorithm>
#include <ctime>

namespace pith::serve {
namespace {

/// Most bytes of a file beside its cache: tokens, header, the ends of sections.
size_t file_bytes(const Session& session) {
  constexpr size_t kHeader = size_t{64} << 10;
  return session.ledger().total_bytes() + session.tokens() * sizeof(int32_t) + kHeader;
}

std::list<IdleSession> found_in(const std::shared_ptr<ConversationFiles>& files) {
  std::list<IdleSession> out;
  if (!files) return out;
  for (auto& [name, file] : files->find())
    out.push_back({name.id, name.tenant, name.policy, nullptr, name.used, file});
  return out;
}

}  // namespace

bool IdleSession::saved() const {
  return session && file && file->tokens == session->tokens() &&
         file->ids == digest_of_ids(session->token_ids());
}

IdleSessions::IdleSessions(std::shared_ptr<ConversationFiles> files, size_t most,
                           SessionSpill& spill)
    : files_(std::move(files)), most_(most), spill_(spill), list_(found_in(files_)) {}

IdleSession* IdleSessions::find(const std::string& id, const std::string& tenant) {
  const auto found = std::ranges::find_if(list_, [&](const IdleSession& idle) {
    return idle.id == id && idle.tenant == tenant && idle.held();
  });
  return found == list_.end() ? nullptr : &*found;
}

void IdleSessions::hold(IdleSession session, bool leaving) {
  ++changes_;
  session.used = std::time(nullptr);
  session.since = jobs_;
  if (const IdleSession* old = find(session.id, session.tenant)) {
    // Its file is of an earlier turn, and good until a later one is written.
    session.file = old->file;
    session.since = old->since;
    std::erase_if(list_, [&](const IdleSession& other) { return &other == old; });
  }
  list_.push_back(std::move(session));
  auto in_memory =
      std::ranges::count_if(list_, [](const IdleSession& i) { return i.session != nullptr; });
  for (auto idle = list_.begin(); idle != list_.end() && in_memory > static_cast<ptrdiff_t>(most_);
       ++idle)
    if (idle->session) --in_memory, leave_memory(*idle);
  if (leaving && files_ && list_.back().session) leave_memory(list_.back());
  drop_empty();
}

void IdleSessions::drop_empty() {
  std::erase_if(list_, [](const IdleSession& idle) { return !idle.held(); });
}

void IdleSessions::forget(const std::string& id, const std::string& tenant) {
  ++changes_;
  if (files_) files_->remove({id, tenant, "", 0});
  std::erase_if(list_, [&](const IdleSession& i) { return i.id == id && i.tenant == tenant; });
}

size_t IdleSessions::disk_bytes() const {
  size_t bytes = 0;
  for (const IdleSession& idle : list_)
    if (idle.file) bytes += idle.file->bytes;
  return bytes;
}

void IdleSessions::trim_disk(size_t coming, const IdleSession* keep) {
  if (!files_) return;
  size_t bytes = disk_bytes() + coming;
  if (keep && keep->file) bytes -= keep->file->bytes;  // it is replaced
  for (auto idle = list_.begin(); idle != list_.end() && bytes > files_->quota(); ++idle) {
    // A conversation that is being written may have its new file already.
    if (!idle->file || &*idle == keep || idle->writing > 0) continue;
    bytes -= idle->file->bytes;
    files_->remove({idle->id, idle->tenant, "", 0});
    idle->file.reset();
    if (!idle->session) ++disk_.dropped;
  }
}

size_t IdleSessions::leave_memory(IdleSession& idle) {
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
  const ConversationName name{idle.id, idle.tenant, idle.policy, idle.used};
  spill_.write(*idle.session, name,
               [this, name, job = jobs_](const ConversationFile& file, const std::string& failure) {
                 written(name, job, file, failure);
               });
  return bytes;
}

void IdleSessions::written(const ConversationName& name, uint64_t job, const ConversationFile& file,
                           const std::string& failure) {
  ++changes_;
  IdleSession* idle = find(name.id, name.tenant);
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
  trim_disk();
}

void IdleSessions::leave_if_safe(IdleSession& idle, Freed& freed) {
  if (!idle.session || (idle.writing == 0 && !disk_failure_.empty() && !idle.saved())) return;
  const size_t soon = leave_memory(idle);
  freed.coming += soon;
  freed.now = soon == 0;
}

IdleSessions::Freed IdleSessions::free(size_t bytes, const IdleSession* own) {
  Freed freed;
  for (auto idle = list_.begin(); idle != list_.end() && !freed.now && freed.coming < bytes; ++idle)
    if (&*idle != own) leave_if_safe(*idle, freed);
  return freed;
}

IdleSessions::Freed IdleSessions::free(IdleSession& idle) {
  Freed freed;
  leave_if_safe(idle, freed);
  return freed;
}

void IdleSessions::adopt(const ConversationName& name, const ConversationFile& file) {
  ++changes_;
  std::erase_if(list_,
                [&](const IdleSession& i) { return i.id == name.id && i.tenant == name.tenant; });
  IdleSession idle{name.id, name.tenant, name.policy, nullptr, std::time(nullptr), file};
  idle.since = jobs_;
  list_.push_back(std::move(idle));
  ++disk_.taken_over;
  trim_disk();
}

void IdleSessions::was_read(const ConversationName& name, bool good, bool usable) {
  ++changes_;
  ++(good ? disk_.reads : disk_.failures);
  IdleSession* idle = find(name.id, name.tenant);
  if (usable || idle == nullptr) return;
  idle->file.reset();
  if (!idle->session) std::erase_if(list_, [&](const IdleSession& i) { return &i == idle; });
}

void IdleSessions::park() {
  try_disk_again();
  for (IdleSession& idle : list_)
    if (idle.session) leave_memory(idle);
  drop_empty();
}

Server::Parked IdleSessions::parked() const {
  Server::Parked out;
  for (const IdleSession& idle : list_) ++(idle.session ? out.lost : out.kept);
  out.failure = disk_failure_;
  return out;
}

void IdleSessions::report(Gauges& gauges) const {
  for (const IdleSession& idle : list_) ++(idle.session ? gauges.idle : gauges.on_disk);
  gauges.disk = disk_;
  gauges.disk.bytes = disk_bytes();
  gauges.disk.budget = files_ ? files_->quota() : 0;
}

}  // namespace pith::serve
