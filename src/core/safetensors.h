#pragma once
// The safetensors format: 8 bytes of header length, a JSON header (name -> dtype, shape, offsets),
// then the tensors' bytes without holes. Files are memory-mapped: opening one costs its header.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_file.h"
#include "pith/dtype.h"

namespace pith {

class MappedFile;  // core/mapped_file.h

enum class TensorType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

size_t size_of(TensorType type);
/// The format's own name, e.g. "BF16".
const char* to_string(TensorType type);

/// One tensor, read-only, row-major. Data are aligned for the type.
struct Tensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<size_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::string file;  ///< for messages

  size_t count() const { return bytes / size_of(type); }
  /// "[2, 3]"
  std::string shape_text() const;
  /// Throws kUnsupported, naming the tensor, unless the type is F32, F16 or BF16.
  DType dtype() const;
};

/// The tensors of one file, or of all the shards that an index names.
class SafeTensors {
 public:
  /// Throws kNotFound, kIo, kCorrupt (any inconsistency, with file and tensor) or kUnsupported (a
  /// dtype that is not in TensorType).
  static SafeTensors open(const std::filesystem::path& file);
  /// model.safetensors, or the shards of model.safetensors.index.json.
  static SafeTensors open_folder(const std::filesystem::path& folder);

  /// By name, ascending.
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  /// Throws kNotFound, naming the files searched.
  const Tensor& at(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& source() const { return source_; }

 private:
  void add_file(const std::filesystem::path& file);

  std::string source_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::shared_ptr<const MappedFile>> mappings_;
  std::vector<std::shared_ptr<std::vector<std::byte>>> copies_;  // of unaligned tensors
};

/// A tensor before its bytes are there.
struct TensorSpec {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<size_t> shape;
};

/// Writes a file front to back: all specs first, then the bytes in the same order, in pieces of any
/// size. The file appears under its name only when finish() has succeeded.
class SafeTensorsWriter {
 public:
  /// Throws kInvalidArgument (a repeated name) or kIo.
  SafeTensorsWriter(const std::filesystem::path& path, const std::vector<TensorSpec>& specs,
                    const std::map<std::string, std::string>& metadata = {});

  void append(const void* data, size_t bytes);
  /// Throws kInternal if bytes are missing.
  void finish();

 private:
  std::filesystem::path path_;
  OutputFile file_;
  size_t left_ = 0;  // bytes still to come
};

/// A spec with its bytes.
struct TensorBytes {
  TensorSpec spec;
  const void* data = nullptr;
};

/// Writes tensors that are in memory, widest type first so that each is aligned.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace pith
