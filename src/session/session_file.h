#pragma once
// The file of a saved session (docs/sessions.md): what it belongs to as names and values, its
// tokens, and its state in sections. It knows nothing of what a section holds.
//
//   64 bytes   "PITHSES1", version and flags, length of all, length of the header, digests of
//              header and data
//   header     JSON, padded with spaces to 64 bytes
//   data       a safetensors image whose tensors begin at multiples of 64 bytes

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/archive.h"
#include "core/digest.h"
#include "core/mapped_file.h"
#include "session/session_key.h"

namespace pith {

/// One part of a state.
struct SessionSection {
  std::string name;
  std::function<void(Archive&)> archive;
};

/// What is written.
struct SessionContents {
  SessionKey key;
  std::span<const int32_t> tokens;
  std::vector<SessionSection> sections;
  std::string note = {};  ///< the program's own, UTF-8
};

struct SessionFileOptions {
  bool replace = false;  ///< a file that is there already
};

/// The file appears whole or not at all, with mode 0600: it holds the conversation. Each section is
/// archived three times: counted, digested, written. Throws kIo, and what sections throw.
void write_session_file(const std::filesystem::path& path, const SessionContents& contents,
                        const SessionFileOptions& options = {});

/// The same bytes to anything that takes them in order; an error of `out` ends it.
void write_session(const std::function<void(std::span<const std::byte>)>& out,
                   const SessionContents& contents);

class SessionFile {
 public:
  struct Section {
    std::string name;
    size_t offset = 0, length = 0;  ///< from the file's begin
    Digest digest;
  };

  /// Everything but the sections' bytes is checked. Throws kNotFound, kIo, kCorrupt, or
  /// kUnsupported for a version that this one does not read.
  explicit SessionFile(const std::filesystem::path& path);
  /// Of bytes in memory, which must outlive it; `name` is for messages.
  SessionFile(std::string name, std::span<const std::byte> bytes);

  /// Reads all bytes. Throws kCorrupt, naming the section that is damaged.
  void verify() const;
  /// Throws kInvalidArgument, naming the first field that differs, with both values.
  void check_key(const SessionKey& wanted) const;
  /// Loads all of a section. Throws kCorrupt.
  void load(const std::string& name, const std::function<void(Archive&)>& archive) const;

  const SessionKey& key() const { return key_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<Section>& sections() const { return sections_; }
  const std::string& created() const { return created_; }
  const std::string& written_by() const { return written_by_; }
  uint32_t version() const { return version_; }
  const std::string& note() const { return note_; }
  const std::string& name() const { return name_; }
  size_t bytes() const { return bytes_.size(); }
  /// Whether it has a section of that name.
  bool has(const std::string& name) const;

 private:
  [[noreturn]] void corrupt(const std::string& why) const;
  void read();
  void read_header();
  const Section& section(const std::string& name) const;

  std::string name_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  size_t data_ = 0;  ///< where it begins
  Digest data_digest_;
  SessionKey key_;
  std::vector<int32_t> tokens_;
  std::vector<Section> sections_;
  std::string created_, written_by_, note_;
};

}  // namespace pith
