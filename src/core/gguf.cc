#include "core/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/input_file.h"
#include "core/mapped_file.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr size_t kMinKeyBytes = 8 + 1 + 4 + 1;                 // name, type, the smallest value
constexpr size_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;      // name, dimensions, type, offset
constexpr uint64_t kMaxKeys = 1 << 16, kMaxTensors = 1 << 16;  // real files: tens, thousands
constexpr size_t kMaxKeyLength = 65535, kMaxNameLength = 63;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kMaxDimension = uint64_t{1} << 40;
constexpr uint64_t kMinAlignment = 8, kMaxAlignment = 1 << 20, kDefaultAlignment = 32;

[[noreturn]] void corrupt_file(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}", file, what));
}

/// Reads front to back. Nothing moves it but take().
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  const std::byte* take(uint64_t n, const char* what) {
    if (n > left()) {
      corrupt_file(file_, fmt::format("{} at byte {} wants {} bytes, {} are left; the file is "
                                      "truncated or damaged",
                                      what, position_, n, left()));
    }
    const std::byte* p = bytes_.data() + position_;
    position_ += n;
    return p;
  }
  template <class T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }
  std::string_view string(const char* what) {
    const auto length = number<uint64_t>(what);
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }
  /// A string of 1 to `longest` visible ASCII characters.
  std::string_view name(const char* what, size_t longest) {
    const std::string_view text = string(what);
    const auto visible = [](char c) { return c > ' ' && c < '\x7f'; };
    if (text.empty() || text.size() > longest || !std::all_of(text.begin(), text.end(), visible)) {
      corrupt_file(file_, fmt::format("{} before byte {} is not 1 to {} visible ASCII characters",
                                      what, position_, longest));
    }
    return text;
  }
  uint64_t left() const { return bytes_.size() - position_; }
  uint64_t position() const { return position_; }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
  uint64_t position_ = 0;
};

GgufValueType read_type(Cursor& cursor, const std::string& file, std::string_view key) {
  const auto id = cursor.number<uint32_t>("a value's type");
  if (id > static_cast<uint32_t>(GgufValueType::kF64)) {
    corrupt_file(file, fmt::format("key '{}' has a value of type {}; known: 0 to 12", key, id));
  }
  return static_cast<GgufValueType>(id);
}

GgufValue read_value(Cursor& cursor, const std::string& file, std::string_view key) {
  GgufValue value;
  value.type = read_type(cursor, file, key);
  if (value.type == GgufValueType::kArray) {
    value.array = true;
    value.type = read_type(cursor, file, key);
    if (value.type == GgufValueType::kArray) {
      corrupt_file(file, fmt::format("key '{}' is an array of arrays", key));
    }
    value.count = cursor.number<uint64_t>("an array's length");
    if (value.count > cursor.left() / gguf_value_bytes(value.type)) {
      corrupt_file(file,
                   fmt::format("key '{}' claims {} elements of at least {} bytes, {} bytes "
                               "are left; the file is truncated or damaged",
                               key, value.count, gguf_value_bytes(value.type), cursor.left()));
    }
  }
  value.data = cursor.take(0, "a value");
  if (value.type == GgufValueType::kString) {
    for (uint64_t i = 0; i < value.count; ++i) cursor.string("a string");
    return value;
  }
  cursor.take(value.count * gguf_value_bytes(value.type), "a value");  // fits: compared above
  if (value.type == GgufValueType::kBool) {
    const auto wrong = [](std::byte b) { return b > std::byte{1}; };
    if (std::any_of(value.data, value.data + value.count, wrong)) {
      corrupt_file(file, fmt::format("key '{}' holds a bool that is neither 0 nor 1", key));
    }
  }
  return value;
}

/// A tensor's description; its bytes begin `offset` after the start of the data.
struct Entry {
  GgufTensor tensor;
  uint64_t offset = 0;
};

const GgufTensorType& read_tensor_type(Cursor& cursor, const GgufTensor& tensor) {
  const auto id = cursor.number<uint32_t>("a tensor's type");
  if (const GgufTensorType* type = gguf_tensor_type(id)) return *type;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tensor '{}' is of type {}, which GGUF does not define: it was "
                          "removed, or belongs to another program. Make the file again with a "
                          "current converter",
                          tensor.file, tensor.name, id));
}

Entry read_entry(Cursor& cursor, const std::string& file) {
  Entry entry;
  GgufTensor& t = entry.tensor;
  t.file = file;
  t.name = cursor.name("a tensor's name", kMaxNameLength);
  const auto dimensions = cursor.number<uint32_t>("a tensor's number of dimensions");
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    corrupt_file(file, fmt::format("tensor '{}' has {} dimensions; expected 1 to {}", t.name,
                                   dimensions, kMaxDimensions));
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto n = cursor.number<uint64_t>("a tensor's shape");
    if (n < 1 || n > kMaxDimension) {
      corrupt_file(file, fmt::format("tensor '{}' has a dimension of {}", t.name, n));
    }
    t.shape.insert(t.shape.begin(), n);  // the file has the contiguous one first
  }
  t.type = &read_tensor_type(cursor, t);
  entry.offset = cursor.number<uint64_t>("a tensor's offset");
  if (t.shape.back() % t.type->elements != 0) {
    corrupt_file(file, fmt::format("tensor '{}' of shape {} has rows that are no whole {} blocks "
                                   "of {}",
                                   t.name, t.shape_text(), t.type->name, t.type->elements));
  }
  uint64_t bytes = t.shape.back() / t.type->elements;  // at most 2^40, as is each factor
  bool fits = !__builtin_mul_overflow(bytes, t.type->bytes, &bytes);
  for (size_t i = 0; i + 1 < t.shape.size(); ++i) {
    fits = fits && !__builtin_mul_overflow(bytes, t.shape[i], &bytes);
  }
  if (!fits) {
    corrupt_file(file, fmt::format("tensor '{}' of shape {} has no size", t.name, t.shape_text()));
  }
  t.bytes = bytes;
  return entry;
}

void check_version(uint32_t version, const std::string& file) {
  if (version == 2 || version == 3) return;
  std::string reason = fmt::format("is GGUF version {}; supported: 2 and 3", version);
  if (version == 1) {
    reason = "is GGUF version 1, of 2023; supported: 2 and 3. Convert the model again";
  } else if ((version & 0xFFFF) == 0) {
    reason = "is a big-endian GGUF file; supported: little-endian ones";
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("{} {}", file, reason));
}

/// Sets each tensor's bytes. Any order and holes are allowed, overlap is not.
void place(std::vector<Entry>& entries, std::span<const std::byte> data, uint64_t alignment,
           const std::string& file) {
  for (Entry& e : entries) {
    if (e.offset % alignment != 0) {
      corrupt_file(file, fmt::format("tensor '{}' starts at byte {} of the data, which is no "
                                     "multiple of {}",
                                     e.tensor.name, e.offset, alignment));
    }
    if (e.offset > data.size() || e.tensor.bytes > data.size() - e.offset) {
      corrupt_file(file, fmt::format("tensor '{}' is {} bytes from byte {} on, but the file holds "
                                     "{} bytes of data; it is truncated or damaged",
                                     e.tensor.name, e.tensor.bytes, e.offset, data.size()));
    }
    e.tensor.data = data.data() + e.offset;
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < entries.size(); ++i) {
    const Entry& before = entries[i - 1];
    if (before.offset + before.tensor.bytes <= entries[i].offset) continue;
    corrupt_file(file, fmt::format("tensors '{}' and '{}' overlap", before.tensor.name,
                                   entries[i].tensor.name));
  }
}

/// "PREFIX-00001-of-00003.gguf" for part 1 of 3.
std::string part_name(const std::string& prefix, int64_t part, int64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, part, count);
}

}  // namespace

size_t gguf_value_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool: return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16: return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32: return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
    case GgufValueType::kString: return 8;  // a string's length, at least
    case GgufValueType::kArray: break;
  }
  return 0;
}

std::string GgufTensor::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

void Gguf::add_part(std::span<const std::byte> bytes, const std::string& name) {
  refuse_stand_in({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, name);
  Cursor cursor(bytes, name);
  const auto* magic = reinterpret_cast<const char*>(cursor.take(kMagic.size(), "the magic"));
  if (std::string_view(magic, kMagic.size()) != kMagic)
    corrupt_file(name, "does not begin with GGUF; it is no GGUF file, or damaged");
  check_version(cursor.number<uint32_t>("the version"), name);
  const auto tensor_count = cursor.number<uint64_t>("the number of tensors");
  const auto key_count = cursor.number<uint64_t>("the number of keys");
  if (tensor_count > std::min(kMaxTensors, cursor.left() / kMinTensorBytes) ||
      key_count > std::min(kMaxKeys, cursor.left() / kMinKeyBytes)) {
    corrupt_file(name, fmt::format("claims {} tensors and {} keys in {} bytes; it is truncated or "
                                   "damaged",
                                   tensor_count, key_count, bytes.size()));
  }
  for (uint64_t i = 0; i < key_count; ++i) {
    const std::string key(cursor.name("a key", kMaxKeyLength));
    if (!keys_.emplace(key, read_value(cursor, name, key)).second) {
      corrupt_file(name, fmt::format("key '{}' occurs twice", key));
    }
  }
  const auto alignment = static_cast<uint64_t>(
      integer("general.alignment", kMinAlignment, kMaxAlignment).value_or(kDefaultAlignment));
  if ((alignment & (alignment - 1)) != 0) {
    corrupt("general.alignment", fmt::format("is {}; expected a power of two", alignment));
  }
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensor_count; ++i) entries.push_back(read_entry(cursor, name));
  const uint64_t header = (cursor.position() + alignment - 1) / alignment * alignment;
  if (header > bytes.size() && !entries.empty()) {
    corrupt_file(name, "ends before its tensors begin; it is truncated");
  }
  place(entries, bytes.subspan(std::min<uint64_t>(header, bytes.size())), alignment, name);
  for (Entry& e : entries) {
    std::string tensor = e.tensor.name;
    const auto [where, fresh] = tensors_.emplace(tensor, std::move(e.tensor));
    if (!fresh) {
      corrupt_file(name, fmt::format("tensor '{}' is in {} too", tensor, where->second.file));
    }
  }
}

void Gguf::add_other_parts(const std::filesystem::path& file) {
  const int64_t count = integer("split.count", 0, 9999).value_or(0);
  if (count < 2) return;
  const int64_t number = integer("split.no", 0, count - 1).value_or(0);
  const std::string name = file.filename().string();
  const std::string ending = part_name("", number + 1, count);
  if (!name.ends_with(ending)) {
    corrupt("split.no", fmt::format("says that this is part {} of {}, whose name would end in '{}'",
                                    number + 1, count, ending));
  }
  const std::string prefix = name.substr(0, name.size() - ending.size());
  if (number != 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} is part {} of {}; give the first, {}", source_, number + 1, count,
                            part_name(prefix, 1, count)));
  }
  for (int64_t i = 1; i < count; ++i) {
    const auto path = file.parent_path() / part_name(prefix, i + 1, count);
    Gguf part;
    part.source_ = path.string();
    auto mapping = std::make_shared<const MappedFile>(path);
    part.add_part(mapping->bytes(), part.source_);
    if (part.integer("split.no", 0, 9999) != i || part.integer("split.count", 0, 9999) != count) {
      part.corrupt("split.no", fmt::format("is not that of part {} of {}", i + 1, count));
    }
    for (auto& [tensor, value] : part.tensors_) {
      const auto [where, fresh] = tensors_.emplace(tensor, std::move(value));
      if (!fresh) {
        corrupt_file(part.source_,
                     fmt::format("tensor '{}' is in {} too", tensor, where->second.file));
      }
    }
    mappings_.push_back(std::move(mapping));
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto total = static_cast<int64_t>(tensors_.size());
  if (integer("split.tensors.count", 0, kMost).value_or(total) != total) {
    corrupt("split.tensors.count", fmt::format("is {}, but all parts together hold {} tensors",
                                               describe("split.tensors.count"), total));
  }
}

bool Gguf::recognises(const std::filesystem::path& file) {
  std::error_code no;
  if (!std::filesystem::is_regular_file(file, no)) return false;  // opening a pipe would wait
  std::ifstream in(file, std::ios::binary);
  char magic[kMagic.size()] = {};
  return in.read(magic, sizeof(magic)) && std::string_view(magic, sizeof(magic)) == kMagic;
}

Gguf Gguf::open(const std::filesystem::path& file) {
  Gguf out;
  out.source_ = file.string();
  auto mapping = std::make_shared<const MappedFile>(file);
  out.add_part(mapping->bytes(), out.source_);
  out.mappings_.push_back(std::move(mapping));
  out.add_other_parts(file);
  return out;
}

Gguf Gguf::parse(std::span<const std::byte> bytes, const std::string& name) {
  Gguf out;
  out.source_ = name;
  out.add_part(bytes, name);
  return out;
}

void Gguf::release_keys() const {
  for (const auto& mapping : mappings_) {
    size_t head = mapping->size();
    for (const auto& [name, t] : tensors_) {
      if (t.data >= mapping->data() && t.data < mapping->data() + mapping->size())
        head = std::min(head, static_cast<size_t>(t.data - mapping->data()));
    }
    mapping->release(head);
  }
}

const GgufTensor* Gguf::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace pith
