#include "core/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/input_file.h"
#include "pith/error.h"

namespace pith {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.size() == 0) return;  // mmap refuses to map nothing
  void* p = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (p == MAP_FAILED) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot map {}: {}", path.string(), std::strerror(errno)));
  }
  data_ = static_cast<const std::byte*>(p);
  size_ = file.size();
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace pith
