#pragma once
// A whole file, mapped read-only. If another process truncates it meanwhile, reads end the program:
// nothing short of copying a model prevents that.

#include <cstddef>
#include <filesystem>
#include <span>

namespace pith {

class MappedFile {
 public:
  /// Throws as InputFile does.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pith
