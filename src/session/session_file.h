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

/// A session as a file holds it.
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

/// A file's head and header, however its bytes come.
class SessionIndex {
 public:
  struct Section {
    std::string name;
    size_t offset = 0, length = 0;  ///< from the file's begin
    Digest digest;
  };

  /// Throws kInvalidArgument, naming the first field that differs, with both values.
  void check_key(const SessionKey& wanted) const;
  const SessionKey& key() const { return key_; }
  size_t token_count() const { return token_count_; }
  const std::vector<Section>& sections() const { return sections_; }
  const std::string& created() const { return created_; }
  const std::string& written_by() const { return written_by_; }
  uint32_t version() const { return version_; }
  const std::string& note() const { return note_; }
  const std::string& name() const { return name_; }
  size_t bytes() const { return length_; }
  /// Whether it has a section of that name.
  bool has(const std::string& name) const;

 protected:
  explicit SessionIndex(std::string name) : name_(std::move(name)) {}
  [[noreturn]] void corrupt(const std::string& why) const;
  /// Of a file's first kHead bytes, or all that there are.
  void read_head(std::span<const std::byte> head);
  size_t header_length() const { return data_ - kHead; }
  void read_header(std::span<const std::byte> header);
  /// How long the image's header is, and whether it is what the sections make.
  size_t image_length() const { return image_.size(); }
  void check_image(std::span<const std::byte> image) const;
  void check_section(const Section& s, std::span<const std::byte> bytes) const;
  void check_data(const Digest& found) const;
  void load(const Section& s, std::span<const std::byte> bytes,
            const std::function<void(Archive&)>& archive) const;

  static constexpr size_t kHead = 64;
  size_t data_ = 0;  ///< where it begins

 private:
  std::string name_;
  uint32_t version_ = 0;
  size_t length_ = 0, token_count_ = 0;
  Digest header_digest_, data_digest_;
  SessionKey key_;
  std::string image_;
  std::vector<Section> sections_;
  std::string created_, written_by_, note_;
};

class SessionFile : public SessionIndex {
 public:
  /// Everything but the sections' bytes is checked. Throws kNotFound, kIo, kCorrupt, or
  /// kUnsupported for a version that this one does not read.
  explicit SessionFile(const std::filesystem::path& path);
  /// Of bytes in memory, which must outlive it; `name` is for messages.
  SessionFile(std::string name, std::span<const std::byte> bytes);

  /// Reads all bytes. Throws kCorrupt, naming the section that is damaged.
  void verify() const;
  /// Loads all of a section. Throws kCorrupt.
  void load(const std::string& name, const std::function<void(Archive&)>& archive) const;
  const std::vector<int32_t>& tokens() const { return tokens_; }
  /// Writes the same session to another file, as write_session_file() does; the program's note is
  /// left out. Throws as verify() and that do.
  void copy_to(const std::filesystem::path& path, const SessionFileOptions& options = {}) const;

 private:
  void read();

  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::vector<int32_t> tokens_;
};

/// The same bytes, each once and in order, with memory for one section at a time. Each is compared
/// with its digest before it is loaded; not a byte is asked for beyond the last.
class SessionStream : public SessionIndex {
 public:
  /// Writes up to so many bytes and returns how many; 0: there are no more.
  using Source = std::function<size_t(std::span<std::byte>)>;

  /// Reads and checks what comes before the first section. Throws as SessionFile does, and what the
  /// source throws.
  SessionStream(std::string name, Source source);
  /// Loads the next section, which must have that name.
  void load(const std::string& name, const std::function<void(Archive&)>& archive);
  /// The tokens' ids, which follow the last section.
  std::vector<int32_t> tokens();

 private:
  std::span<const std::byte> take(size_t bytes);
  std::span<const std::byte> take_data(size_t bytes);

  Source source_;
  std::vector<std::byte> buffer_;
  DigestStream data_seen_;
  size_t taken_ = 0, next_ = 0;  // bytes; the section that comes
};

}  // namespace pith
