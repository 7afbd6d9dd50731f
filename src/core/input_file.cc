#include "core/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pith/error.h"

namespace pith {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw Error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
              fmt::format("cannot read {}: {}", path.string(), std::strerror(error)));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe that nobody writes to would wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) fail(path_, errno);
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<size_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (error != 0) fail(path_, error);
  throw Error(ErrorCode::kIo, fmt::format("cannot read {}: it is {}; a regular file is needed",
                                          path_.string(), kind_of(status.st_mode)));
}

InputFile::~InputFile() { ::close(descriptor_); }

std::string InputFile::read(size_t most) const {
  if (size_ > most)
    throw Error(ErrorCode::kIo,
                fmt::format("cannot read {}: it has {} bytes, and at most {} make sense here; is "
                            "it the file that was meant?",
                            path_.string(), size_, most));
  std::string bytes(size_, '\0');
  size_t done = 0;
  while (done < size_) {
    const ssize_t n =
        ::pread(descriptor_, bytes.data() + done, size_ - done, static_cast<off_t>(done));
    if (n < 0) fail(path_, errno);
    if (n == 0) break;  // it was shortened meanwhile
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

std::string read_file(const std::filesystem::path& path, size_t most) {
  return InputFile(path).read(most);
}

void refuse_stand_in(std::string_view bytes, const std::string& file) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{} is {}", file, what));
  };
  if (bytes.starts_with("version https://git-lfs"))
    refuse("a pointer of Git LFS, not the file itself: 'git lfs pull' fetches it");
  bytes.remove_prefix(std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size()));
  const auto begins = [&](std::string_view with) {
    return bytes.size() >= with.size() &&
           ::strncasecmp(bytes.data(), with.data(), with.size()) == 0;
  };
  if (begins("<!doctype html") || begins("<html"))
    refuse("a page of HTML, not the file itself: download it again, signed in if it must be");
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() !=
         std::filesystem::file_type::not_found;
}

}  // namespace pith
