#pragma once
// The one place where files are opened for writing. A file appears under its name whole or not at
// all; what is there and is not a regular file is never replaced: a link stays a link, and a pipe
// or a device gets the bytes.

#include <cstddef>
#include <filesystem>
#include <string_view>
#include <vector>

namespace pith {

struct OutputOptions {
  bool replaces = true;     ///< a file of that name may be there already
  bool is_private = false;  ///< for its owner's eyes alone: mode 0600, and a regular file
  bool durable = false;  ///< on the disk before it has its name, and its name there before commit
                         ///< returns
};

class OutputFile {
 public:
  /// Throws kIo if nothing can be written there, naming why: a folder, a file that is
  /// write-protected, a folder that does not exist.
  explicit OutputFile(const std::filesystem::path& path, const OutputOptions& options = {});
  /// Without commit() nothing is left of a regular file.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Throws kIo.
  void write(const void* data, size_t bytes);
  /// Gives the file its name. Throws kIo.
  void commit();

 private:
  void create_beside();
  bool give_name() const;
  void sync_folder() const;
  [[noreturn]] void fail(const char* doing) const;

  OutputOptions options_;
  std::filesystem::path path_;                // as asked, for messages
  std::filesystem::path target_, temporary_;  // behind links; "" = written to directly
  int descriptor_ = -1;
};

/// Writes a whole file.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// Refuses here whatever OutputFile will refuse, before the work whose result it is to hold; so is,
/// with kInvalidArgument, an output that is one of the inputs. Inputs of "" or "-" do not count.
void check_output(const std::filesystem::path& path,
                  const std::vector<std::filesystem::path>& inputs = {});

}  // namespace pith
