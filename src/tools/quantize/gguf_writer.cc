#include "tools/quantize/gguf_writer.h"

#include <fmt/format.h>

#include <cstring>

#include "pith/error.h"

namespace pith {
namespace {

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_string(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out += text;
}

size_t padded(size_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

}  // namespace

void GgufKeys::begin(std::string_view key, GgufValueType type) {
  put_string(bytes_, key);
  put(bytes_, static_cast<uint32_t>(type));
  ++count_;
}

void GgufKeys::begin_array(std::string_view key, GgufValueType type, uint64_t count) {
  begin(key, GgufValueType::kArray);
  put(bytes_, static_cast<uint32_t>(type));
  put(bytes_, count);
}

void GgufKeys::u32(std::string_view key, uint32_t value) {
  begin(key, GgufValueType::kU32);
  put(bytes_, value);
}
void GgufKeys::i32(std::string_view key, int32_t value) {
  begin(key, GgufValueType::kI32);
  put(bytes_, value);
}
void GgufKeys::u16(std::string_view key, uint16_t value) {
  begin(key, GgufValueType::kU16);
  put(bytes_, value);
}
void GgufKeys::f32(std::string_view key, float value) {
  begin(key, GgufValueType::kF32);
  put(bytes_, value);
}
void GgufKeys::flag(std::string_view key, bool value) {
  begin(key, GgufValueType::kBool);
  put(bytes_, static_cast<uint8_t>(value));
}
void GgufKeys::text(std::string_view key, std::string_view value) {
  begin(key, GgufValueType::kString);
  put_string(bytes_, value);
}
void GgufKeys::i32s(std::string_view key, const std::vector<int32_t>& values) {
  begin_array(key, GgufValueType::kI32, values.size());
  for (int32_t value : values) put(bytes_, value);
}
void GgufKeys::f32s(std::string_view key, const std::vector<float>& values) {
  begin_array(key, GgufValueType::kF32, values.size());
  for (float value : values) put(bytes_, value);
}
void GgufKeys::texts(std::string_view key, const std::vector<std::string>& values) {
  begin_array(key, GgufValueType::kString, values.size());
  for (const std::string& value : values) put_string(bytes_, value);
}

void GgufKeys::flags(std::string_view key, const std::vector<bool>& values) {
  begin_array(key, GgufValueType::kBool, values.size());
  for (const bool value : values) put(bytes_, static_cast<uint8_t>(value));
}
void GgufKeys::copy(std::string_view key, const GgufValue& value) {
  if (value.array)
    begin_array(key, value.type, value.count);
  else
    begin(key, value.type);
  size_t bytes = 0;
  if (value.type == GgufValueType::kString) {
    for (uint64_t i = 0; i < value.count; ++i) {
      uint64_t length = 0;
      std::memcpy(&length, value.data + bytes, sizeof(length));
      bytes += sizeof(length) + length;
    }
  } else {
    bytes = value.count * gguf_value_bytes(value.type);
  }
  bytes_.append(reinterpret_cast<const char*>(value.data), bytes);
}

size_t gguf_tensor_bytes(const GgufTensorSpec& spec) {
  const GgufTensorType* type = gguf_tensor_type(spec.type);
  if (!type || spec.shape.empty() || spec.shape.back() % type->elements != 0) {
    throw Error(ErrorCode::kInternal, fmt::format("tensor '{}' cannot be of type {}", spec.name,
                                                  type ? type->name : "?"));
  }
  size_t bytes = spec.shape.back() / type->elements * type->bytes;
  for (size_t i = 0; i + 1 < spec.shape.size(); ++i) bytes *= spec.shape[i];
  return bytes;
}

std::string gguf_head(const GgufKeys& keys, const std::vector<GgufTensorSpec>& specs) {
  std::string out = "GGUF";
  put<uint32_t>(out, 3);
  put<uint64_t>(out, specs.size());
  put<uint64_t>(out, keys.count());
  out += keys.bytes();
  uint64_t offset = 0;
  for (const GgufTensorSpec& spec : specs) {
    put_string(out, spec.name);
    put(out, static_cast<uint32_t>(spec.shape.size()));
    for (size_t i = spec.shape.size(); i-- > 0;) put<uint64_t>(out, spec.shape[i]);
    put(out, spec.type);
    put(out, offset);
    offset += padded(gguf_tensor_bytes(spec));
  }
  out.resize(padded(out.size()));
  return out;
}

}  // namespace pith
