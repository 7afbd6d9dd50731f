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

Record to_record(const Ledger& ledger);
/// The inverse of to_record.
Ledger ledger_from(const Record& record);

class RecordFile {
 public:
  /// Reads what is there; an empty path keeps everything in memory only. A half-written last line
  /// (a run that was killed) is cut off when the first record comes. Throws kCorrupt for a file
  /// that holds anything else, kIo if it cannot be written or is not a regular file.
  explicit RecordFile(const std::filesystem::path& path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  /// The record of a key, or null. Stays valid.
  const Record* find(const std::string& key) const;
  /// Adds record["key"] = key and writes the line at once. Any thread may call.
  void add(const std::string& key, Record record);
  size_t found() const { return found_; }  ///< records that were there at the start

  /// use(record of `key`), which must be there. Throws kCorrupt if its fields are not what `use`
  /// takes them for.
  template <class F>
  auto read(const std::string& key, const F& use) const {
    try {
      return use(*find(key));
    } catch (const Record::exception& error) {
      refuse(error.what());
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void fail() const;
  void read_lines(const std::string& text);

  std::filesystem::path path_;
  int descriptor_ = -1;  // open for appending
  size_t half_ = 0;      // bytes of a half-written last line
  mutable std::mutex mutex_;
  std::map<std::string, Record> records_;
  size_t found_ = 0;
};

}  // namespace pith
