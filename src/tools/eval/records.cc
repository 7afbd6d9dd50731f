#include "tools/eval/records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/json_file.h"
#include "core/mapped_file.h"
#include "pith/error.h"
#include "pith/presets.h"

namespace pith {
namespace {

constexpr uint64_t kFnvStart = 0xcbf29ce484222325u, kFnvPrime = 0x100000001b3u;
constexpr size_t kSample = 1 << 20;

uint64_t hash_on(uint64_t hash, std::string_view bytes) {
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kFnvPrime;
  return hash;
}

// The first and the last MiB, or all of a small file.
std::string ends_of(const MappedFile& file) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  if (bytes.size() <= 2 * kSample) return std::string(bytes);
  return std::string(bytes.substr(0, kSample)).append(bytes.substr(bytes.size() - kSample));
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& model) {
  if (!std::filesystem::is_directory(model)) return {model};  // GGUF
  std::vector<std::filesystem::path> files{model / "config.json"};
  for (const auto& entry : std::filesystem::directory_iterator(model))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string fingerprint(std::string_view bytes) {
  return fmt::format("{:016x}", hash_on(kFnvStart, bytes));
}

std::string model_fingerprint(const std::filesystem::path& model) {
  const bool folder = std::filesystem::is_directory(model);
  uint64_t hash = kFnvStart;
  for (const auto& file : files_of(model)) {
    const MappedFile mapped(file);
    // A folder's files are known by their names; one that is the whole model may have any.
    if (folder) hash = hash_on(hash, file.filename().string());
    hash = hash_on(hash, fmt::format(" {}\n", mapped.size()));
    hash = hash_on(hash, ends_of(mapped));
  }
  return fmt::format("{:016x}", hash);
}

Record to_record(const Ledger& l) {
  return {{"tokens", l.tokens},
          {"rows_seen", l.rows_seen},
          {"rows_kept", l.rows_kept},
          {"channels_seen", l.channels_seen},
          {"channels_kept", l.channels_kept},
          {"payload", l.payload},
          {"metadata", l.metadata},
          {"shared", l.shared},
          {"slack", l.slack},
          {"staging", l.staging},
          {"scratch", l.scratch},
          {"probe", l.probe},
          {"cache_bytes", l.cache_bytes()},
          {"effective_bits", l.effective_bits()}};
}

Ledger ledger_from(const Record& r) {
  Ledger l;
  const auto count = [&](const char* name) { return whole_number(r, name); };
  l.tokens = count("tokens"), l.rows_seen = count("rows_seen"), l.rows_kept = count("rows_kept");
  l.channels_seen = count("channels_seen"), l.channels_kept = count("channels_kept");
  l.payload = count("payload"), l.metadata = count("metadata"), l.shared = count("shared");
  l.slack = count("slack"), l.staging = count("staging"), l.scratch = count("scratch");
  l.probe = r.contains("probe") ? count("probe") : 0;  // records of before have none
  return l;
}

void RecordFile::refuse(const std::string& why) const {
  throw Error(ErrorCode::kCorrupt,
              fmt::format("{}: {}; results of pith eval go to a new file, or on in their own",
                          path_.string(), why));
}

void RecordFile::fail() const {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
}

RecordFile::RecordFile(const std::filesystem::path& path) : path_(path) {
  if (path_.empty()) return;
  if (is_there(path_)) {
    const InputFile there(path_);  // first of all: what is not a regular file is not opened
    read_lines(there.read(kMostTextBytes));
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail();
}

RecordFile::~RecordFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void RecordFile::read_lines(const std::string& text) {
  check_json_depth(text, path_.string());
  size_t start = 0, line = 1;
  for (size_t end = text.find('\n'); end != std::string::npos;
       start = end + 1, end = text.find('\n', start), ++line) {
    auto record = Record::parse(text.substr(start, end - start), nullptr, false);
    if (!record.is_object() || !record.contains("key") || !record["key"].is_string())
      refuse(fmt::format("line {} is not a result of pith eval", line));
    const std::string key = record["key"];
    records_[key] = std::move(record);
  }
  found_ = records_.size();
  half_ = text.size() - start;
  // Half a line is ours only behind whole ones: alone it may be anybody's text.
  if (half_ > 0 && (found_ == 0 || text[start] != '{'))
    refuse(fmt::format("line {} has no end and is not a result of pith eval", line));
}

const Record* RecordFile::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

void RecordFile::add(const std::string& key, Record record) {
  record["key"] = key;
  const std::lock_guard lock(mutex_);
  if (descriptor_ >= 0) {
    if (half_ > 0) {
      const auto size = std::filesystem::file_size(path_);
      if (::ftruncate(descriptor_, static_cast<off_t>(size - half_)) != 0) fail();
      half_ = 0;
    }
    const std::string line = record.dump(-1, ' ', false, Record::error_handler_t::replace) + "\n";
    // One write: lines of two runs that share a file do not mix.
    if (::write(descriptor_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) fail();
  }
  records_[key] = std::move(record);
}

}  // namespace pith
