#include "session/session_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/output_file.h"
#include "pith/error.h"
#include "pith/version.h"

namespace pith {
namespace {

using Json = nlohmann::ordered_json;
using Bytes = std::span<const std::byte>;

constexpr char kMagic[8] = {'P', 'I', 'T', 'H', 'S', 'E', 'S', '1'};
constexpr uint32_t kVersion = 1;
constexpr size_t kAlign = 64;
constexpr size_t kMostHeader = size_t{1} << 20;
constexpr int kMostDepth = 8;
constexpr const char* kTokens = "tokens";

/// The first 64 bytes. All numbers of a file are little-endian, as every machine that this runs on.
struct Head {
  char magic[8];
  uint32_t version, flags;
  uint64_t length, header_length;  // of all; of the header with its padding
  Digest header, data;
};
static_assert(sizeof(Head) == 64);

size_t padded(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }
Bytes bytes_of(const void* x, size_t n) { return {static_cast<const std::byte*>(x), n}; }
Bytes bytes_of(const std::string& text) { return bytes_of(text.data(), text.size()); }

/// The header of the safetensors image. Tensors follow each other without holes, so that a
/// section's is as long as what it holds with its padding; the tokens come last.
std::string image_header(size_t tokens, std::span<const SessionFile::Section> sections) {
  Json json = Json::object();  // [] of a null crashes where it gets no memory
  size_t at = 0;
  const auto add = [&](const std::string& name, const char* type, size_t count, size_t bytes) {
    json[name] = {{"dtype", type}, {"shape", {count}}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  };
  for (const SessionFile::Section& s : sections)
    add(s.name, "U8", padded(s.length), padded(s.length));
  add(kTokens, "I32", tokens, tokens * sizeof(int32_t));
  std::string text = json.dump();
  text.append(padded(8 + text.size()) - 8 - text.size(), ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

/// Hands out all bytes of the data part, in order; `archived` sees each section's own.
template <class Out, class Archived>
void for_data(const SessionContents& contents, const std::string& image, const Out& out,
              const Archived& archived) {
  static constexpr std::byte kZeros[kAlign] = {};
  const auto pad = [&](size_t n) { out(Bytes(kZeros, padded(n) - n)); };
  out(bytes_of(image));
  for (size_t i = 0; i < contents.sections.size(); ++i) {
    Archive a([&](Bytes more) {
      out(more);
      archived(i, more);
    });
    contents.sections[i].archive(a);
    pad(a.bytes());
  }
  out(std::as_bytes(contents.tokens));
}

/// A state has many small numbers between its arrays: a call of the system for each would be slow.
class Gathered {
 public:
  explicit Gathered(OutputFile& file) : file_(file) { bytes_.reserve(kMost); }
  void write(Bytes more) {
    if (bytes_.size() + more.size() > kMost) flush();
    if (more.size() > kMost) return file_.write(more.data(), more.size());
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  void flush() {
    file_.write(bytes_.data(), bytes_.size());
    bytes_.clear();
  }

 private:
  static constexpr size_t kMost = size_t{1} << 18;
  OutputFile& file_;
  std::vector<std::byte> bytes_;
};

Json header_of(const SessionContents& contents, std::span<const SessionFile::Section> sections) {
  Json json = Json::object(), key = Json::object();
  json["format"] = "pith session";
  json["written_by"] = "pith " PITH_VERSION;
  json["created"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  for (const auto& [name, value] : contents.key) key[name] = value;
  json["key"] = std::move(key);
  if (!contents.note.empty()) json["note"] = contents.note;
  json["tokens"] = contents.tokens.size();
  json["sections"] = Json::array();
  for (const SessionFile::Section& s : sections)
    json["sections"].push_back(
        {{"name", s.name}, {"length", s.length}, {"digest", s.digest.text()}});
  return json;
}

uint64_t number_of(const Json& json, const char* name) {
  const Json& value = json.at(name);
  if (!value.is_number_unsigned()) throw std::runtime_error(fmt::format("'{}' is no count", name));
  return value.get<uint64_t>();
}

Digest digest_from(const std::string& text) {
  Digest d;
  const char *begin = text.data(), *end = begin + text.size();
  if (text.size() != 32 || std::from_chars(begin, begin + 16, d.high, 16).ptr != begin + 16 ||
      std::from_chars(begin + 16, end, d.low, 16).ptr != end)
    throw std::runtime_error("a digest is not 32 hexadecimal digits");
  return d;
}

Json parse_header(const char* text, size_t length) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostDepth) throw std::runtime_error("its header is nested too deep");
    return true;
  };
  return Json::parse(text, text + length, shallow);
}

}  // namespace

void write_session_file(const std::filesystem::path& path, const SessionContents& contents,
                        const SessionFileOptions& options) {
  // First, so that what cannot be written is refused before anything is computed.
  OutputFile file(path, {.replaces = options.replace, .is_private = true, .durable = true});
  Gathered out(file);
  write_session([&](Bytes more) { out.write(more); }, contents);
  out.flush();
  file.commit();
}

void write_session(const std::function<void(Bytes)>& out, const SessionContents& contents) {
  std::vector<SessionFile::Section> sections;
  for (const SessionSection& section : contents.sections) {
    Archive count;
    section.archive(count);
    sections.push_back({section.name, 0, count.bytes(), {}});
  }
  const std::string image = image_header(contents.tokens.size(), sections);
  std::vector<DigestStream> digests(sections.size());
  DigestStream data;
  size_t length = 0;
  for_data(
      contents, image,
      [&](Bytes more) {
        data.add(more);
        length += more.size();
      },
      [&](size_t i, Bytes more) { digests[i].add(more); });
  for (size_t i = 0; i < sections.size(); ++i) sections[i].digest = digests[i].digest();
  std::string header = header_of(contents, sections).dump();
  header.append(padded(header.size()) - header.size(), ' ');
  if (header.size() > kMostHeader)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("a session with a header of {} bytes; at most {} can be saved: give it "
                            "a shorter note",
                            header.size(), kMostHeader));
  Head head{{}, kVersion, 0, 0, header.size(), digest_of(bytes_of(header)), data.digest()};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.length = sizeof(Head) + header.size() + length;
  out(bytes_of(&head, sizeof(head)));
  out(bytes_of(header));
  for_data(contents, image, out, [](size_t, Bytes) {});
}

SessionFile::SessionFile(const std::filesystem::path& path)
    : name_(path.string()), file_(std::in_place, path), bytes_(file_->bytes()) {
  read();
}

SessionFile::SessionFile(std::string name, Bytes bytes) : name_(std::move(name)), bytes_(bytes) {
  read();
}

void SessionFile::read() {
  Head head;
  if (bytes_.size() < sizeof(head)) corrupt("it is too short to be a session");
  std::memcpy(&head, bytes_.data(), sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0) corrupt("it is no session of Pith's");
  version_ = head.version;
  if (version_ != kVersion || head.flags != 0)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: a session file of version {} with flags {:#x}; this Pith reads "
                            "version {}: read the prompt again, or use the Pith that wrote it",
                            name_, version_, head.flags, kVersion));
  if (head.length != bytes_.size())
    corrupt(fmt::format("it should have {} bytes and has {}", head.length, bytes_.size()));
  if (head.header_length > kMostHeader || head.header_length % kAlign != 0 ||
      sizeof(Head) + head.header_length > bytes_.size())
    corrupt(fmt::format("a header of {} bytes in a file of {}", head.header_length, bytes_.size()));
  data_ = sizeof(Head) + head.header_length;
  data_digest_ = head.data;
  const Bytes header = bytes_.subspan(sizeof(Head), head.header_length);
  if (digest_of(header) != head.header) corrupt("its header is damaged");
  try {
    read_header();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // of the JSON's reader
    corrupt(e.what());
  }
}

void SessionFile::corrupt(const std::string& why) const {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}", name_, why));
}

void SessionFile::read_header() {
  const Json json = parse_header(reinterpret_cast<const char*>(bytes_.data()) + sizeof(Head),
                                 data_ - sizeof(Head));
  created_ = json.at("created").get<std::string>();
  written_by_ = json.at("written_by").get<std::string>();
  if (json.contains("note")) note_ = json.at("note").get<std::string>();
  for (const auto& [name, value] : json.at("key").items())
    key_.emplace_back(name, value.get<std::string>());
  const uint64_t tokens = number_of(json, "tokens");
  const size_t room = bytes_.size() - data_;
  if (tokens > room / 4) corrupt("more tokens than it has bytes");
  tokens_.resize(tokens);
  size_t all = 0;
  for (const Json& part : json.at("sections")) {
    Section s;
    s.name = part.at("name").get<std::string>();
    s.length = number_of(part, "length");
    s.digest = digest_from(part.at("digest").get<std::string>());
    if (s.length > room) corrupt(fmt::format("section '{}' is longer than the file", s.name));
    s.offset = all;
    all += padded(s.length);
    if (all > room) corrupt(fmt::format("section '{}' passes the end of the file", s.name));
    sections_.push_back(std::move(s));
  }
  // The image's own header says the same in another way: it must be what these sections make.
  const std::string image = image_header(tokens, sections_);
  if (image.size() + all + tokens * sizeof(int32_t) != room ||
      std::memcmp(bytes_.data() + data_, image.data(), image.size()) != 0)
    corrupt("its sections are not where its header says");
  for (Section& s : sections_) s.offset += data_ + image.size();
  if (tokens > 0)
    std::memcpy(tokens_.data(), bytes_.data() + bytes_.size() - tokens * sizeof(int32_t),
                tokens * sizeof(int32_t));
}

void SessionFile::verify() const {
  for (const Section& s : sections_)
    if (digest_of(bytes_.subspan(s.offset, s.length)) != s.digest)
      corrupt(fmt::format("section '{}' is damaged", s.name));
  if (digest_of(bytes_.subspan(data_)) != data_digest_)
    corrupt("its tokens or what is between its sections are damaged");
}

void SessionFile::check_key(const SessionKey& wanted) const {
  pith::check_key(name_, key_, wanted,
                  "a session goes on under what it began with alone ('pith session info' shows all "
                  "of it)");
}

bool SessionFile::has(const std::string& name) const {
  return std::ranges::any_of(sections_, [&](const Section& s) { return s.name == name; });
}

const SessionFile::Section& SessionFile::section(const std::string& name) const {
  for (const Section& s : sections_)
    if (s.name == name) return s;
  corrupt(fmt::format("it has no section '{}'", name));
}

void SessionFile::load(const std::string& name,
                       const std::function<void(Archive&)>& archive) const {
  const Section& s = section(name);
  Archive a(bytes_.subspan(s.offset, s.length), fmt::format("{}: {}", name_, name));
  archive(a);
  a.end();
}

}  // namespace pith
