#pragma once
// Files of saved sessions, read without a model. Session::save writes them, Session::restore
// continues from them (pith/session.h). docs/sessions.md has the format.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

struct SavedSession {
  uint32_t version = 0;                       ///< of the format
  std::string created = {}, written_by = {};  ///< UTC; "pith 0.1.0"
  size_t bytes = 0;                           ///< of the file
  /// The fields that a restore compares: model, policy, context, ...
  std::vector<std::pair<std::string, std::string>> key = {};
  std::vector<int32_t> tokens = {};  ///< ids; a request that begins with them reuses the session
  struct Part {
    std::string name = {};
    size_t bytes = 0;
  };
  std::vector<Part> parts = {};
  std::string note = {};  ///< SaveOptions::note

  /// A field of the key by name; "" if there is none.
  std::string field(const std::string& name) const;
};

/// Reads a file's header and tokens. `verify` compares all bytes with their digests. Throws
/// kNotFound, kIo, kCorrupt (naming the damaged part), and kUnsupported for another version.
SavedSession read_saved(const std::filesystem::path& path, bool verify = false);

}  // namespace pith

#pragma GCC visibility pop
