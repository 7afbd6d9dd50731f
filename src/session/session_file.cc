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
constexpr size_t kMostLength = size_t{1} << 60;  // sums of lengths do not wrap
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

/// Padded as a file has it.
std::string header_text(const Json& json) {
  std::string header = json.dump();
  header.append(padded(header.size()) - header.size(), ' ');
  return header;
}

Head head_of(const std::string& header, size_t data_length, const Digest& data) {
  Head head{{},
            kVersion,
            0,
            sizeof(Head) + header.size() + data_length,
            header.size(),
            digest_of(bytes_of(header)),
            data};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  return head;
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
  const std::string header = header_text(header_of(contents, sections));
  if (header.size() > kMostHeader)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("a session with a header of {} bytes; at most {} can be saved: give it "
                            "a shorter note",
                            header.size(), kMostHeader));
  const Head head = head_of(header, length, data.digest());
  out(bytes_of(&head, sizeof(head)));
  out(bytes_of(header));
  for_data(contents, image, out, [](size_t, Bytes) {});
}

void SessionIndex::corrupt(const std::string& why) const {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}", name_, why));
}

void SessionIndex::read_head(Bytes first) {
  static_assert(sizeof(Head) == kHead);
  Head head;
  if (first.size() < sizeof(head)) corrupt("it is too short to be a session");
  std::memcpy(&head, first.data(), sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0) corrupt("it is no session of Pith's");
  version_ = head.version;
  if (version_ != kVersion || head.flags != 0)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: a session file of version {} with flags {:#x}; this Pith reads "
                            "version {}: read the prompt again, or use the Pith that wrote it",
                            name_, version_, head.flags, kVersion));
  length_ = head.length;
  if (head.header_length > kMostHeader || head.header_length % kAlign != 0 ||
      sizeof(Head) + head.header_length > length_ || length_ > kMostLength)
    corrupt(fmt::format("a header of {} bytes in a file of {}", head.header_length, length_));
  data_ = sizeof(Head) + head.header_length;
  header_digest_ = head.header;
  data_digest_ = head.data;
}

void SessionIndex::read_header(Bytes header) try {
  if (digest_of(header) != header_digest_) corrupt("its header is damaged");
  const Json json = parse_header(reinterpret_cast<const char*>(header.data()), header.size());
  created_ = json.at("created").get<std::string>();
  written_by_ = json.at("written_by").get<std::string>();
  if (json.contains("note")) note_ = json.at("note").get<std::string>();
  for (const auto& [name, value] : json.at("key").items())
    key_.emplace_back(name, value.get<std::string>());
  token_count_ = number_of(json, "tokens");
  const size_t room = length_ - data_;
  if (token_count_ > room / sizeof(int32_t)) corrupt("more tokens than it has bytes");
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
  image_ = image_header(token_count_, sections_);
  if (image_.size() + all + token_count_ * sizeof(int32_t) != room)
    corrupt("its sections are not where its header says");
  for (Section& s : sections_) s.offset += data_ + image_.size();
} catch (const Error&) {
  throw;
} catch (const std::exception& e) {  // of the JSON's reader
  corrupt(e.what());
}

// The image's own header says the same in another way: it must be what these sections make.
void SessionIndex::check_image(Bytes image) const {
  if (!std::ranges::equal(image, bytes_of(image_)))
    corrupt("its sections are not where its header says");
}

void SessionIndex::check_section(const Section& s, Bytes bytes) const {
  if (digest_of(bytes) != s.digest) corrupt(fmt::format("section '{}' is damaged", s.name));
}

void SessionIndex::check_data(const Digest& found) const {
  if (found != data_digest_) corrupt("its tokens or what is between its sections are damaged");
}

void SessionIndex::check_key(const SessionKey& wanted) const {
  pith::check_key(name_, key_, wanted,
                  "a session goes on under what it began with alone ('pith session info' shows all "
                  "of it)");
}

bool SessionIndex::has(const std::string& name) const {
  return std::ranges::any_of(sections_, [&](const Section& s) { return s.name == name; });
}

void SessionIndex::load(const Section& s, Bytes bytes,
                        const std::function<void(Archive&)>& archive) const {
  Archive a(bytes, fmt::format("{}: {}", name_, s.name));
  archive(a);
  a.end();
}

SessionFile::SessionFile(const std::filesystem::path& path)
    : SessionIndex(path.string()), file_(std::in_place, path), bytes_(file_->bytes()) {
  read();
}

SessionFile::SessionFile(std::string name, Bytes all) : SessionIndex(std::move(name)), bytes_(all) {
  read();
}

void SessionFile::read() {
  read_head(bytes_.first(std::min(bytes_.size(), kHead)));
  if (bytes() != bytes_.size())
    corrupt(fmt::format("it should have {} bytes and has {}", bytes(), bytes_.size()));
  read_header(bytes_.subspan(kHead, header_length()));
  check_image(bytes_.subspan(data_, image_length()));
  const Bytes last = bytes_.last(token_count() * sizeof(int32_t));
  tokens_.resize(token_count());
  if (!tokens_.empty()) std::memcpy(tokens_.data(), last.data(), last.size());
}

void SessionFile::verify() const {
  for (const Section& s : sections()) check_section(s, bytes_.subspan(s.offset, s.length));
  check_data(digest_of(bytes_.subspan(data_)));
}

void SessionFile::copy_to(const std::filesystem::path& path,
                          const SessionFileOptions& options) const {
  verify();
  const Bytes old = bytes_.subspan(kHead, header_length()), data = bytes_.subspan(data_);
  Json json = parse_header(reinterpret_cast<const char*>(old.data()), old.size());
  json.erase("note");
  const std::string header = header_text(json);
  const Head head = head_of(header, data.size(), digest_of(data));
  OutputFile file(path, {.replaces = options.replace, .is_private = true, .durable = true});
  file.write(&head, sizeof(head));
  file.write(header.data(), header.size());
  file.write(data.data(), data.size());
  file.commit();
}

void SessionFile::load(const std::string& name,
                       const std::function<void(Archive&)>& archive) const {
  for (const Section& s : sections())
    if (s.name == name) return SessionIndex::load(s, bytes_.subspan(s.offset, s.length), archive);
  corrupt(fmt::format("it has no section '{}'", name));
}

SessionStream::SessionStream(std::string name, Source source)
    : SessionIndex(std::move(name)), source_(std::move(source)) {
  if (!source_)
    throw Error(ErrorCode::kInvalidArgument, "a restore without a source; give one with bytes");
  read_head(take(kHead));
  read_header(take(header_length()));
  check_image(take_data(image_length()));
}

// Memory grows with the bytes that came, whatever a header says that there are.
Bytes SessionStream::take(size_t wanted) {
  constexpr size_t kStep = size_t{1} << 20;
  for (size_t have = 0; have < wanted;) {
    const size_t step = std::min(wanted - have, std::max(kStep, have));
    if (buffer_.size() < have + step) buffer_.resize(have + step);
    const size_t came = source_(std::span(buffer_).subspan(have, step));
    if (came > step)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a source that wrote {} bytes where {} were asked for", came, step));
    if (came == 0)
      corrupt(taken_ + have < kHead
                  ? "it is too short to be a session"
                  : fmt::format("it should have {} bytes and has {}", bytes(), taken_ + have));
    have += came;
  }
  taken_ += wanted;
  return Bytes(buffer_).first(wanted);
}

Bytes SessionStream::take_data(size_t wanted) {
  const Bytes bytes = take(wanted);
  data_seen_.add(bytes);
  return bytes;
}

void SessionStream::load(const std::string& name, const std::function<void(Archive&)>& archive) {
  if (next_ == sections().size() || sections()[next_].name != name)
    corrupt(fmt::format("it has no section '{}' where that should be", name));
  const Section& s = sections()[next_++];
  const Bytes bytes = take_data(padded(s.length)).first(s.length);
  check_section(s, bytes);
  SessionIndex::load(s, bytes, archive);
}

std::vector<int32_t> SessionStream::tokens() {
  if (next_ != sections().size())
    corrupt(fmt::format("section '{}' is none that a session has", sections()[next_].name));
  const Bytes last = take_data(token_count() * sizeof(int32_t));
  check_data(data_seen_.digest());
  std::vector<int32_t> all(token_count());
  if (!all.empty()) std::memcpy(all.data(), last.data(), last.size());
  return all;
}

}  // namespace pith
