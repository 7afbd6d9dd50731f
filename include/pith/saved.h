#pragma once
// Files of saved sessions, looked at without a model. Session::save writes them and
// Session::restore goes on from them (pith/session.h); docs/sessions.md has the format.

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
  /// What must be the same for the session to go on: model, policy, context, ...
  std::vector<std::pair<std::string, std::string>> key = {};
  std::vector<int32_t> tokens = {};  ///< ids, in order: what a request that begins with them reuses
  struct Part {
    std::string name = {};
    size_t bytes = 0;
  };
  std::vector<Part> parts = {};
  std::string note = {};  ///< SaveOptions::note

  /// The key's field of that name; "" if there is none.
  std::string field(const std::string& name) const;
};

/// Reads what a file says of itself. With `verify` all of its bytes are compared with their
/// digests. Throws kNotFound, kIo, kCorrupt (what is damaged), kUnsupported (another version).
SavedSession read_saved(const std::filesystem::path& path, bool verify = false);

}  // namespace pith

#pragma GCC visibility pop
