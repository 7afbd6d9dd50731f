#include "core/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "pith/error.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const char* doing, const fs::path& path, const std::string& why) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {} {}: {}", doing, path.string(), why));
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
  const fs::path folder = place.target.has_parent_path() ? place.target.parent_path() : ".";
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    refuse("write", path, fmt::format("{}: {}", folder.string(), std::strerror(errno)));
  return place;
}

}  // namespace

OutputFile::OutputFile(const fs::path& path) : path_(path) {
  const Place place = place_of(path);
  target_ = place.target;
  if (place.direct) {
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) fail("open");
    return;
  }
  create_beside();
  struct stat status {};
  if (::stat(target_.c_str(), &status) == 0) ::fchmod(descriptor_, place.mode);
}

// A name of its own for every writer: two that share an output must not share what is unfinished.
void OutputFile::create_beside() {
  static std::atomic<unsigned> count{0};
  do {
    temporary_ = target_;
    temporary_ += fmt::format(".{}-{}.partial", ::getpid(), count++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail("create");
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
  const bool closed = ::close(std::exchange(descriptor_, -1)) == 0;
  if (temporary_.empty()) {
    if (!closed) fail("finish");
    return;
  }
  if (closed && ::rename(temporary_.c_str(), target_.c_str()) == 0) return;
  const int error = errno;
  ::unlink(temporary_.c_str());
  errno = error;
  fail("finish");
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
