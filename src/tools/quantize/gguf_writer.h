#pragma once
// Writes GGUF files, version 3.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/gguf.h"

namespace pith {

/// Keys and values, in the order in which they are added. A key is added once.
class GgufKeys {
 public:
  void u32(std::string_view key, uint32_t value);
  void i32(std::string_view key, int32_t value);
  void u16(std::string_view key, uint16_t value);
  void f32(std::string_view key, float value);
  void flag(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void i32s(std::string_view key, const std::vector<int32_t>& values);
  void f32s(std::string_view key, const std::vector<float>& values);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void flags(std::string_view key, const std::vector<bool>& values);
  /// A value of another file, as it lies there.
  void copy(std::string_view key, const GgufValue& value);

  const std::string& bytes() const { return bytes_; }
  uint64_t count() const { return count_; }

 private:
  void begin(std::string_view key, GgufValueType type);
  void begin_array(std::string_view key, GgufValueType type, uint64_t count);

  std::string bytes_;
  uint64_t count_ = 0;
};

/// A tensor before its bytes are there; the shape is row-major.
struct GgufTensorSpec {
  std::string name;
  uint32_t type = 0;  ///< of gguf_tensor_type
  std::vector<size_t> shape;
};

/// Bytes that the tensor will have.
size_t gguf_tensor_bytes(const GgufTensorSpec& spec);
inline constexpr size_t kGgufAlignment = 32;

/// All that comes before the data. Tensors follow each other in the order of the specs, each padded
/// to kGgufAlignment.
std::string gguf_head(const GgufKeys& keys, const std::vector<GgufTensorSpec>& specs);

}  // namespace pith
