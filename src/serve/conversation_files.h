#pragma once
// Idle conversations in a folder, each in a file of its own. The file's note says whose it is, so
// that another process finds all of them again.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "pith/session.h"

namespace pith::serve {

/// Which conversation, and what its state depends on.
struct ConversationName {
  std::string id, tenant, policy;
  int64_t used = 0;  ///< unix seconds
};

struct ConversationFile {
  size_t tokens = 0, bytes = 0;
  Digest ids;  ///< of the tokens' ids
};

/// A message of files for clients, who need not know where a folder lies.
std::string without_folder(std::string message, const std::filesystem::path& folder);

Digest digest_of_ids(std::span<const int32_t> ids);

class ConversationFiles {
 public:
  /// The beginning of a tenant's name, and its replacement in files: keys are numbered in the
  /// order of a command line, files outlive it.
  using Owners = std::vector<std::pair<std::string, std::string>>;
  using Folders = std::vector<std::filesystem::path>;

  /// Makes the folder. `others`: those of servers whose conversations go on here when they leave.
  /// Throws kIo, and kInvalidArgument where another process has the folder.
  ConversationFiles(std::filesystem::path folder, size_t quota, uint64_t model, Owners owners,
                    Folders others = {});
  ~ConversationFiles();
  ConversationFiles(const ConversationFiles&) = delete;
  ConversationFiles& operator=(const ConversationFiles&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  /// Bytes that all files together may take.
  size_t quota() const { return quota_; }
  /// The conversations that are there, those used least recently first. Files of other models, of
  /// keys that are not known and damaged ones are left alone.
  std::vector<std::pair<ConversationName, ConversationFile>> find() const;

  /// Says in the folder that this server is about to end: others may take what is there.
  void leave() const;
  /// Whether another server is about to end and still there: its files may be on their way.
  bool others_leave() const;
  /// Moves the conversation's file here from a server that is about to end or has ended, if it has
  /// more than `tokens` tokens.
  std::optional<std::pair<ConversationName, ConversationFile>> take(const ConversationName& name,
                                                                    size_t tokens) const;

  // Any thread:
  /// Replaces what is there of the conversation. Throws kIo; what was there stays.
  ConversationFile write(const Session& session, const ConversationName& name) const;
  /// Into a session that has seen nothing. Throws as Session::restore does.
  Session read(Session empty, const ConversationName& name) const;
  /// Its session to a file of another's. Throws kNotFound, kCorrupt and kIo.
  void copy(const ConversationName& name, const std::filesystem::path& to, bool replace) const;
  void remove(const ConversationName& name) const;
  /// Puts a file that cannot be read aside, where nothing overwrites it.
  void set_aside(const ConversationName& name) const;

 private:
  std::filesystem::path path(const ConversationName& name) const;
  /// The contents of a file; nullopt: it is not for this server.
  std::optional<std::pair<ConversationName, ConversationFile>> look(
      const std::filesystem::path& file) const;
  /// A tenant as files have it, and back; nullopt: of a key that is not known.
  std::string lasting(const std::string& tenant) const;
  std::optional<std::string> tenant_of(const std::string& lasting) const;

  const std::filesystem::path folder_;
  const size_t quota_;
  const std::string model_;
  const Owners owners_;
  const Folders others_;
  int lock_ = -1;
};

}  // namespace pith::serve
