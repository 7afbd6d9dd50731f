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

namespace pith::serve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".conversation";

size_t size_of(const fs::path& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  return error ? 0 : static_cast<size_t>(bytes);
}

std::pair<std::string, std::string> parted(const std::string& tenant) {
  const size_t bar = std::min(tenant.find('|'), tenant.size());
  return {tenant.substr(0, bar), tenant.substr(bar)};
}

}  // namespace

Digest digest_of_ids(std::span<const int32_t> ids) { return digest_of(std::as_bytes(ids)); }

ConversationFiles::ConversationFiles(fs::path folder, size_t quota, uint64_t model, Owners owners)
    : folder_(std::move(folder)),
      quota_(quota),
      model_(fmt::format("{:016x}", model)),
      owners_(std::move(owners)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!error) fs::permissions(folder_, fs::perms::owner_all, error);
  if (error)
    throw Error(ErrorCode::kIo,
                fmt::format("--autosave: {}: {}", folder_.string(), error.message()));
  const fs::path lock = folder_ / ".lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0)
    throw Error(ErrorCode::kIo,
                fmt::format("--autosave: {}: {}", lock.string(), std::strerror(errno)));
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) return;
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

std::vector<std::pair<ConversationName, ConversationFile>> ConversationFiles::find() const {
  std::vector<std::pair<ConversationName, ConversationFile>> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().extension() != kEnding) continue;
    try {
      const SavedSession saved = read_saved(entry.path());
      const Json note = parse_object(saved.note);
      Fields f(note);
      const auto tenant = tenant_of(f.required_text("tenant", SIZE_MAX));
      if (!tenant || f.required_text("model", 16) != model_) continue;
      out.push_back(
          {{f.required_text("conversation", SIZE_MAX), *tenant, f.required_text("policy", SIZE_MAX),
            f.integer("used", 0, INT64_MAX).value_or(0)},
           {saved.tokens.size(), saved.bytes, digest_of_ids(saved.tokens)}});
    } catch (const std::exception&) {
      continue;  // damaged, or of another program: whoever owns it may look
    }
  }
  std::ranges::sort(out, {}, [](const auto& found) { return found.first.used; });
  return out;
}

ConversationFile ConversationFiles::write(const Session& session,
                                          const ConversationName& name) const {
  const Json note{{"conversation", name.id},
                  {"tenant", lasting(name.tenant)},
                  {"policy", name.policy},
                  {"model", model_},
                  {"used", name.used}};
  const fs::path to = path(name);
  session.save(to, {.replace = true, .note = dump(note)});
  return {session.tokens(), size_of(to), digest_of_ids(session.token_ids())};
}

Session ConversationFiles::read(const std::shared_ptr<Engine>& engine,
                                const SessionOptions& options, const ConversationName& name) const {
  return Session::restore(engine, path(name), options);
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
