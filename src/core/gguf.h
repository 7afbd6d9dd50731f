#pragma once
// The GGUF container, versions 2 and 3: keys with typed values, descriptions of tensors, then the
// tensors' bytes. Files are mapped: opening one walks its keys once and reads no tensor. Everything
// is taken as hostile: no length, count, size or offset is believed before it was compared with
// what is left of the file, and what no sane writer writes is refused.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pith {

class MappedFile;  // core/mapped_file.h

/// Types of values, numbered as in the file.
enum class GgufValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// "u8", "string", ...
const char* to_string(GgufValueType type);
/// Bytes of a value; of a string at least its length; of an array 0.
size_t gguf_value_bytes(GgufValueType type);

/// How a type of tensor stores its numbers: blocks of `elements` along a row, `bytes` each.
struct GgufTensorType {
  uint32_t id;
  const char* name;  ///< e.g. "Q4_K"
  size_t elements, bytes;
};

/// Null for a number that names no type.
const GgufTensorType* gguf_tensor_type(uint32_t id);

/// One value as it lies in the file; GgufValue of an array has the type of its elements.
struct GgufValue {
  GgufValueType type = GgufValueType::kU8;
  bool array = false;
  uint64_t count = 1;
  const std::byte* data = nullptr;
};

/// One tensor, read-only.
struct GgufTensor {
  std::string name;
  const GgufTensorType* type = nullptr;
  std::vector<size_t> shape;  ///< row-major: the contiguous dimension last, as in safetensors
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::string file;  ///< for messages

  /// "[2, 3]"
  std::string shape_text() const;
};

/// One file, or all parts of a split one. Reads of a key give nothing where it is absent and throw
/// kCorrupt, naming file and key, where it has another type or a value out of range.
class Gguf {
 public:
  /// Whether the file begins as GGUF does; false if it cannot be read.
  static bool recognises(const std::filesystem::path& file);
  /// A file, or the first part of a split one, whose other parts lie beside it. Throws kNotFound,
  /// kIo, kCorrupt (any inconsistency, with file and place) or kUnsupported (another version, byte
  /// order or type of tensor; a part that is not the first).
  static Gguf open(const std::filesystem::path& file);
  /// A file that is in memory already, which must outlive the result. `name` is for messages. For
  /// looking at it: a model is made of files that were opened.
  static Gguf parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& source() const { return source_; }
  /// Whether all of it lies in MappedFiles.
  bool mapped() const { return !mappings_.empty(); }
  /// Gives the memory of what lies before the tensors back to the system: a vocabulary is
  /// megabytes. Keys can still be read, from the disk. To be called before tensors are rewritten.
  void release_keys() const;
  /// By name, ascending.
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;
  /// Every key with its value as it lies in the file.
  const std::map<std::string, GgufValue, std::less<>>& keys() const { return keys_; }
  bool has(std::string_view key) const { return keys_.find(key) != keys_.end(); }

  /// Any of the whole-number types, in [first, last].
  std::optional<int64_t> integer(std::string_view key, int64_t first, int64_t last) const;
  /// f32 or f64, finite.
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  /// Arrays, whole: any of the whole-number types, each in [first, last]; f32 or f64, finite; bool;
  /// strings. Strings point into the file.
  std::optional<std::vector<int64_t>> integers(std::string_view key, int64_t first,
                                               int64_t last) const;
  std::optional<std::vector<float>> numbers(std::string_view key) const;
  std::optional<std::vector<bool>> flags(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;

  /// The value for a reader, arrays by their type and length: "f32 10000", "string[49152]".
  std::string describe(std::string_view key) const;

  /// Throws kCorrupt: "FILE: key 'KEY' PROBLEM".
  [[noreturn]] void corrupt(std::string_view key, const std::string& problem) const;

 private:
  void add_part(std::span<const std::byte> bytes, const std::string& name);
  void add_other_parts(const std::filesystem::path& file);
  const GgufValue* find_value(std::string_view key, bool array, const char* expected) const;

  std::string source_;
  std::map<std::string, GgufValue, std::less<>> keys_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
  std::vector<std::shared_ptr<const MappedFile>> mappings_;
};

}  // namespace pith
