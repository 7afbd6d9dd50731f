#include "eval/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "pith/error.h"

namespace pith {
namespace {

constexpr uint64_t kFnvStart = 0xcbf29ce484222325u, kFnvPrime = 0x100000001b3u;
constexpr std::streamoff kSample = 1 << 20;

uint64_t hash_on(uint64_t hash, std::string_view bytes) {
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kFnvPrime;
  return hash;
}

// The first and the last MiB, or all of a small file.
std::string ends_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  std::string bytes(static_cast<size_t>(std::min(size, 2 * kSample)), '\0');
  const std::streamoff half = std::min(size, kSample);
  in.read(bytes.data(), half);
  const std::streamoff rest = static_cast<std::streamoff>(bytes.size()) - half;
  in.seekg(size - rest);
  in.read(bytes.data() + half, rest);
  if (!in) throw Error(ErrorCode::kIo, fmt::format("{} cannot be read", path.string()));
  return bytes;
}

}  // namespace

std::string fingerprint(std::string_view bytes) {
  return fmt::format("{:016x}", hash_on(kFnvStart, bytes));
}

std::string model_fingerprint(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files{folder / "config.json"};
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  uint64_t hash = kFnvStart;
  for (const auto& file : files) {
    hash = hash_on(
        hash, fmt::format("{} {}\n", file.filename().string(), std::filesystem::file_size(file)));
    hash = hash_on(hash, ends_of(file));
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
  l.tokens = r.at("tokens"), l.rows_seen = r.at("rows_seen"), l.rows_kept = r.at("rows_kept");
  l.channels_seen = r.at("channels_seen"), l.channels_kept = r.at("channels_kept");
  l.payload = r.at("payload"), l.metadata = r.at("metadata"), l.shared = r.at("shared");
  l.slack = r.at("slack"), l.staging = r.at("staging"), l.scratch = r.at("scratch");
  l.probe = r.value("probe", size_t{0});  // records of before have none
  return l;
}

RecordFile::RecordFile(const std::filesystem::path& path) : path_(path) {
  if (path_.empty()) return;
  std::string text;
  if (std::ifstream in(path_, std::ios::binary); in)
    text.assign(std::istreambuf_iterator<char>(in), {});
  size_t start = 0, line = 1;
  for (size_t end = text.find('\n'); end != std::string::npos;
       start = end + 1, end = text.find('\n', start), ++line) {
    auto record = Record::parse(text.substr(start, end - start), nullptr, false);
    if (!record.is_object() || !record.contains("key"))
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{}: line {} is not a result of pith eval; give another file",
                              path_.string(), line));
    const std::string key = record["key"];
    records_[key] = std::move(record);
  }
  found_ = records_.size();
  if (start < text.size()) std::filesystem::resize_file(path_, start);
  if (!std::ofstream(path_, std::ios::app))
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be written", path_.string()));
}

const Record* RecordFile::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

void RecordFile::add(const std::string& key, Record record) {
  record["key"] = key;
  const std::lock_guard lock(mutex_);
  if (!path_.empty()) {
    std::ofstream out(path_, std::ios::app | std::ios::binary);
    out << record.dump(-1, ' ', false, Record::error_handler_t::replace) + "\n";
    if (!out.flush())
      throw Error(ErrorCode::kIo, fmt::format("{} cannot be written", path_.string()));
  }
  records_[key] = std::move(record);
}

}  // namespace pith
