#pragma once
// A whole file, mapped read-only. If another process truncates it meanwhile, reads end the program:
// nothing short of copying a model prevents that.

#include <cstddef>
#include <filesystem>
#include <functional>
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
  /// Gives the pages of the first `bytes` back; they are read again where they are touched.
  void release(size_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Lets `change` write to bytes of a MappedFile, in place: their pages become this process's own
/// and the file stays as it is. A copy elsewhere would take the same memory beside the file's
/// pages, which the kernel maps again with their neighbours. Nobody may read the bytes meanwhile.
/// Throws kOutOfMemory.
void rewrite_mapped(std::span<const std::byte> bytes,
                    const std::function<void(std::span<std::byte>)>& change);

}  // namespace pith
