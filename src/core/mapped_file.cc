#include "core/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "pith/error.h"

namespace pith {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    throw Error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  }
  struct stat status {};
  int error = ::fstat(file, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) error = EISDIR;
  size_ = static_cast<size_t>(status.st_size);
  if (error == 0 && size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (p == MAP_FAILED)
      error = errno;
    else
      data_ = static_cast<const std::byte*>(p);
  }
  ::close(file);
  if (error != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot map {}: {}", path.string(), std::strerror(error)));
  }
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace pith
