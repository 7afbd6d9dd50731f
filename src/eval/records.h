#pragma once
// Results as JSON lines, one finished piece of work a line, so that an interrupted evaluation goes
// on where it stopped. A line's "key" names everything that its result depends on.

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "pith/ledger.h"

namespace pith {

using Record = nlohmann::ordered_json;

/// 64-bit FNV-1a in hexadecimal: tells texts and models apart, no protection against forgery.
std::string fingerprint(std::string_view bytes);
/// Of config.json, and of name, size, first and last MiB of each weights file: all of a large model
/// would take minutes to read.
std::string model_fingerprint(const std::filesystem::path& folder);

Record to_record(const Ledger& ledger);
/// The inverse of to_record.
Ledger ledger_from(const Record& record);

class RecordFile {
 public:
  /// Reads what is there; an empty path keeps everything in memory only. A half-written last line
  /// (a run that was killed) is cut off. Throws kCorrupt for any other line that is not a record,
  /// kIo if the file cannot be written.
  explicit RecordFile(const std::filesystem::path& path);
  /// The record of a key, or null. Stays valid.
  const Record* find(const std::string& key) const;
  /// Adds record["key"] = key and writes the line at once. Any thread may call.
  void add(const std::string& key, Record record);
  size_t found() const { return found_; }  ///< records that were there at the start

 private:
  std::filesystem::path path_;
  mutable std::mutex mutex_;
  std::map<std::string, Record> records_;
  size_t found_ = 0;
};

}  // namespace pith
