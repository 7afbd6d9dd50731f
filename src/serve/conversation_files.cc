#include "serve/conversation_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pith/error.h"
#include "pith/saved.h"
#include "serve/json_gate.h"
#include "session/session_file.h"

namespace pith::serve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".conversation";
constexpr const char* kLock = ".lock";
constexpr const char* kLeaving = ".leaving";

size_t size_of(const fs::path& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  return error ? 0 : static_cast<size_t>(bytes);
}

std::pair<std::string, std::string> parted(const std::string& tenant) {
  const size_t bar = std::min(tenant.find('|'), tenant.size());
  return {tenant.substr(0, bar), tenant.substr(bar)};
}

/// Whether a process has the folder of conversations.
bool is_owned(const fs::path& folder) {
  const int lock = ::open((folder / kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (lock < 0) return false;
  const bool owned = ::flock(lock, LOCK_SH | LOCK_NB) != 0;
  ::close(lock);
  return owned;
}

bool leaves(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kLeaving, error);
}

/// Moves a file, which appears whole or not at all. False: another was quicker, or it cannot be.
bool move_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error != std::errc::cross_device_link) return !error;
  fs::path copy = to;
  copy += ".coming";
  fs::copy_file(from, copy, fs::copy_options::overwrite_existing, error);
  if (!error) fs::permissions(copy, fs::perms::owner_read | fs::perms::owner_write, error);
  if (!error) fs::rename(copy, to, error);
  std::error_code ignored;
  fs::remove(error ? copy : from, ignored);
  return !error;
}

/// Runs `f`, whose errors clients may read.
template <class F>
auto told_without(const fs::path& folder, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw Error(error.code(), without_folder(error.what(), folder));
  }
}

}  // namespace

std::string without_folder(std::string message, const fs::path& folder) {
  const auto replace = [&](const std::string& what, const std::string& with) {
    for (size_t at = message.find(what); at != message.npos; at = message.find(what, at)) {
      message.replace(at, what.size(), with);
      at += with.size();
    }
  };
  replace((folder / "").string(), "");
  if (folder.is_absolute()) replace(folder.string(), "the folder");
  return message;
}

Digest digest_of_ids(std::span<const int32_t> ids) { return digest_of(std::as_bytes(ids)); }

ConversationFiles::ConversationFiles(fs::path folder, size_t quota, uint64_t model, Owners owners,
                                     Folders others)
    : folder_(std::move(folder)),
      quota_(quota),
      model_(fmt::format("{:016x}", model)),
      owners_(std::move(owners)),
      others_(std::move(others)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!error) fs::permissions(folder_, fs::perms::owner_all, error);
  if (error)
    throw Error(ErrorCode::kIo,
                fmt::format("--autosave: {}: {}", folder_.string(), error.message()));
  const fs::path lock = folder_ / kLock;
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0)
    throw Error(ErrorCode::kIo,
                fmt::format("--autosave: {}: {}", lock.string(), std::strerror(errno)));
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) {
    fs::remove(folder_ / kLeaving, error);
    return;
  }
  ::close(lock_);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--autosave: another server keeps its conversations in {}; give each a "
                          "--slot-save-path of its own",
                          folder_.string()));
}

ConversationFiles::~ConversationFiles() { ::close(lock_); }

std::string ConversationFiles::lasting(const std::string& tenant) const {
  const auto [who, rest] = parted(tenant);
  for (const auto& [name, stands] : owners_)
    if (name == who) return stands + rest;
  return tenant;
}

std::optional<std::string> ConversationFiles::tenant_of(const std::string& lasting) const {
  const auto [stands, rest] = parted(lasting);
  for (const auto& [name, known] : owners_)
    if (known == stands) return name + rest;
  if (stands.empty() && owners_.empty()) return lasting;
  return std::nullopt;
}

fs::path ConversationFiles::path(const ConversationName& name) const {
  DigestStream digest;
  for (const std::string& text : {model_, lasting(name.tenant), name.id}) digest.add_text(text);
  return folder_ / (digest.digest().text() + kEnding);
}

std::optional<std::pair<ConversationName, ConversationFile>> ConversationFiles::look(
    const fs::path& file) const {
  try {
    const SavedSession saved = read_saved(file);
    const Json note = parse_object(saved.note);
    Fields f(note);
    const auto tenant = tenant_of(f.required_text("tenant", SIZE_MAX));
    if (!tenant || f.required_text("model", 16) != model_) return std::nullopt;
    return std::pair(
        ConversationName{f.required_text("conversation", SIZE_MAX), *tenant,
                         f.required_text("policy", SIZE_MAX),
                         f.integer("used", 0, INT64_MAX).value_or(0)},
        ConversationFile{saved.tokens.size(), saved.bytes, digest_of_ids(saved.tokens)});
  } catch (const std::exception&) {
    return std::nullopt;  // damaged, or of another program: whoever owns it may look
  }
}

std::vector<std::pair<ConversationName, ConversationFile>> ConversationFiles::find() const {
  std::vector<std::pair<ConversationName, ConversationFile>> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().extension() != kEnding) continue;
    if (auto found = look(entry.path())) out.push_back(std::move(*found));
  }
  std::ranges::sort(out, {}, [](const auto& found) { return found.first.used; });
  return out;
}

void ConversationFiles::leave() const {
  const int file = ::open((folder_ / kLeaving).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
}

bool ConversationFiles::others_leave() const {
  return std::ranges::any_of(others_, [](const fs::path& o) { return leaves(o) && is_owned(o); });
}

std::optional<std::pair<ConversationName, ConversationFile>> ConversationFiles::take(
    const ConversationName& name, size_t tokens) const {
  const fs::path here = path(name);
  std::error_code error;
  for (const fs::path& other : others_) {
    const fs::path there = other / here.filename();
    if (!fs::exists(there, error) || (is_owned(other) && !leaves(other))) continue;
    auto found = look(there);
    if (found && found->second.tokens > tokens && move_file(there, here)) return found;
  }
  return std::nullopt;
}

ConversationFile ConversationFiles::write(const Session& session,
                                          const ConversationName& name) const {
  const Json note{{"conversation", name.id},
                  {"tenant", lasting(name.tenant)},
                  {"policy", name.policy},
                  {"model", model_},
                  {"used", name.used}};
  const fs::path to = path(name);
  told_without(folder_, [&] { session.save(to, {.replace = true, .note = dump(note)}); });
  return {session.tokens(), size_of(to), digest_of_ids(session.token_ids())};
}

Session ConversationFiles::read(Session empty, const ConversationName& name) const {
  return told_without(folder_, [&] { return Session::restore(std::move(empty), path(name)); });
}

void ConversationFiles::copy(const ConversationName& name, const fs::path& to, bool replace) const {
  told_without(folder_, [&] { SessionFile(path(name)).copy_to(to, {.replace = replace}); });
}

void ConversationFiles::remove(const ConversationName& name) const {
  std::error_code error;
  fs::remove(path(name), error);
}

void ConversationFiles::set_aside(const ConversationName& name) const {
  std::error_code error;
  const fs::path from = path(name);
  fs::path to = from;
  fs::rename(from, to.replace_extension(".damaged"), error);
}

}  // namespace pith::serve
