#include "core/output_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "pith/error.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const char* doing, const fs::path& path, const std::string& why) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {} {}: {}", doing, path.string(), why));
}

constexpr const char* kUnfinished = ".partial";

fs::path folder_of(const fs::path& target) {
  return target.has_parent_path() ? target.parent_path() : fs::path(".");
}

/// Where the bytes go.
struct Place {
  fs::path target;      ///< behind links
  bool direct = false;  ///< a pipe or a device
  mode_t mode = 0666;
};

// A chain of links ends at what it names, which need not exist yet; nothing if on the way is an
// open file of this process (/dev/stdout > /proc/self/fd/1), which must not get another's name.
std::optional<fs::path> follow_links(const fs::path& path) {
  constexpr int kMostLinks = 40;  // the kernel's own limit
  fs::path at = path;
  for (int i = 0; i < kMostLinks; ++i) {
    if (at.native().starts_with("/proc/")) return std::nullopt;
    std::error_code error;
    const fs::path next = fs::read_symlink(at, error);
    if (error) return at;
    at = next.is_absolute() ? next : at.parent_path() / next;
  }
  refuse("write", path, std::strerror(ELOOP));
}

Place place_of(const fs::path& path) {
  if (path.empty())
    throw Error(ErrorCode::kInvalidArgument, "the name of a file to write is empty");
  Place place;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) refuse("write", path, "it is a folder; name a file");
    if (S_ISSOCK(status.st_mode) || S_ISBLK(status.st_mode))
      refuse("write", path, "it is a socket or a disk; name a file");
    if (::access(path.c_str(), W_OK) != 0) refuse("write", path, std::strerror(errno));
    place.direct = !S_ISREG(status.st_mode);
    place.mode = status.st_mode & 0777;
  } else if (errno != ENOENT) {
    refuse("write", path, std::strerror(errno));
  }
  const std::optional<fs::path> target = follow_links(path);
  place.direct = place.direct || !target;
  place.target = place.direct ? path : *target;
  if (place.direct) return place;
  const fs::path folder = folder_of(place.target);
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    refuse("write", path, fmt::format("{}: {}", folder.string(), std::strerror(errno)));
  return place;
}

/// Files that killed writers left beside `target`. A writer holds a lock on what it writes; one
/// that has just made its file and not locked it yet is told by the file's age.
void remove_leftovers(const fs::path& target) {
  constexpr time_t kNew = 60;  // seconds
  const std::string begin = target.filename().string() + ".";
  const fs::path folder = folder_of(target);
  // Not fs::directory_iterator: without memory it ends the program.
  const auto close_folder = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close_folder)> entries(::opendir(folder.c_str()));
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(begin) || !name.ends_with(kUnfinished)) continue;
    const fs::path path = folder / name;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    struct stat status {};
    const bool left = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                      status.st_uid == ::geteuid() && status.st_mtime + kNew < ::time(nullptr) &&
                      ::flock(file, LOCK_EX | LOCK_NB) == 0;
    if (left) ::unlink(path.c_str());
    ::close(file);
  }
}

}  // namespace

OutputFile::OutputFile(const fs::path& path, const OutputOptions& options)
    : options_(options), path_(path) {
  const Place place = place_of(path);
  target_ = place.target;
  if (options.is_private && place.direct)
    refuse("write", path, "it is a pipe or a device; name a file");
  if (!options.replaces && fs::exists(fs::symlink_status(target_)))
    refuse("write", path, "it is there already; name another, or ask to replace it");
  if (place.direct) {
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) fail("open");
    return;
  }
  remove_leftovers(target_);
  create_beside();
  struct stat status {};
  if (!options.is_private && ::stat(target_.c_str(), &status) == 0)
    ::fchmod(descriptor_, place.mode);
}

// A name of its own for every writer: two that share an output must not share what is unfinished.
void OutputFile::create_beside() {
  static std::atomic<unsigned> count{0};
  do {
    temporary_ = target_;
    temporary_ += fmt::format(".{}-{}{}", ::getpid(), count++, kUnfinished);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                         options_.is_private ? 0600 : 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail("create");
  ::flock(descriptor_, LOCK_EX | LOCK_NB);  // where locks are not kept, leftovers are not removed
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* doing) const { refuse(doing, path_, std::strerror(errno)); }

void OutputFile::write(const void* data, size_t bytes) {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_, p, bytes);
    // A signal interrupts only pipes and terminals, and there it must end the wait for a reader.
    if (done < 0) fail("write");
    p += done;
    bytes -= static_cast<size_t>(done);
  }
}

void OutputFile::commit() {
  if (options_.durable && ::fsync(descriptor_) != 0) fail("finish");
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;
  if (temporary_.empty()) {
    if (!closed) fail("finish");
    return;
  }
  const bool named = closed && give_name();
  const int error = errno;
  if (!named || !options_.replaces) ::unlink(temporary_.c_str());
  errno = error;
  if (!named) fail("finish");
  if (options_.durable) sync_folder();
}

bool OutputFile::give_name() const {
  if (options_.replaces) return ::rename(temporary_.c_str(), target_.c_str()) == 0;
  // A name that somebody took meanwhile stays theirs.
  return ::link(temporary_.c_str(), target_.c_str()) == 0;
}

void OutputFile::sync_folder() const {
  const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = folder >= 0 && ::fsync(folder) == 0;
  const int error = errno;
  if (folder >= 0) ::close(folder);
  errno = error;
  if (!done) fail("finish");
}

void write_file(const fs::path& path, std::string_view bytes) {
  OutputFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void check_output(const fs::path& path, const std::vector<fs::path>& inputs) {
  place_of(path);
  for (const fs::path& input : inputs) {
    std::error_code no;
    if (!input.empty() && input != "-" && fs::is_regular_file(input, no) &&
        fs::equivalent(path, input, no))
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} is read, so it cannot be the output too; name another file",
                              path.string()));
  }
}

}  // namespace pith
