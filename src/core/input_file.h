#pragma once
// The one place where files are opened for reading. A file that is read whole or mapped must be a
// regular file of a sensible size: a folder, a device or a pipe in its place is refused at once,
// never waited for.

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace pith {

/// Most bytes of a file by its kind, some ten times the largest that are known. They keep a wrong
/// name (a disk image, a sparse file) from filling the memory.
inline constexpr size_t kMostConfigBytes = size_t{16} << 20;  // config.json and its like
inline constexpr size_t kMostTableBytes = size_t{512} << 20;  // vocabularies, lists of tensors
inline constexpr size_t kMostTextBytes = size_t{1} << 30;     // texts, results, samples

/// A regular file, open for reading.
class InputFile {
 public:
  /// Throws kNotFound, or kIo for what may not be read or is not a regular file.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }
  /// Everything in it. Throws kIo if it has more than `most` bytes or cannot be read.
  std::string read(size_t most) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  size_t size_ = 0;
};

/// InputFile(path).read(most).
std::string read_file(const std::filesystem::path& path, size_t most);

/// Throws kCorrupt, naming the file, for bytes that a download left in place of a model's: a
/// pointer of Git LFS, or the page of an error.
void refuse_stand_in(std::string_view bytes, const std::string& file);

/// True if a folder has an entry of this name, be it one that cannot be opened (a link to nowhere):
/// opening it then says what is wrong with it.
bool is_there(const std::filesystem::path& path);

}  // namespace pith
