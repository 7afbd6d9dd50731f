#include "core/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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

void MappedFile::release(size_t bytes) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t whole = std::min(bytes, size_) / page * page;
  if (whole > 0) ::madvise(const_cast<std::byte*>(data_), whole, MADV_DONTNEED);
}

void rewrite_mapped(std::span<const std::byte> bytes,
                    const std::function<void(std::span<std::byte>)>& change) {
  if (bytes.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto* data = const_cast<std::byte*>(bytes.data());
  const auto first = reinterpret_cast<uintptr_t>(data) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(data) + bytes.size();
  const auto allow = [&](int access) {
    return ::mprotect(reinterpret_cast<void*>(first), end - first, access) == 0;
  };
  if (!allow(PROT_READ | PROT_WRITE)) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("{} bytes of a mapped file cannot become this process's own: {}",
                            bytes.size(), std::strerror(errno)));
  }
  change({data, bytes.size()});
  allow(PROT_READ);  // a guard against stray writes, not needed
}

}  // namespace pith
