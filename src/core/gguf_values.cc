// Typed reads of GGUF keys. Writers differ in the integer types that they choose, so a whole number
// is asked for by its range, not by its type.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/gguf.h"
#include "pith/error.h"

namespace pith {
namespace {

template <class T>
T element(const GgufValue& value, size_t i) {
  T out;
  std::memcpy(&out, value.data + i * sizeof(T), sizeof(T));
  return out;
}

/// Element i as a whole number; what does not fit int64 becomes its largest. Nothing: another type.
std::optional<int64_t> whole(const GgufValue& value, size_t i) {
  switch (value.type) {
    case GgufValueType::kU8: return element<uint8_t>(value, i);
    case GgufValueType::kI8: return element<int8_t>(value, i);
    case GgufValueType::kU16: return element<uint16_t>(value, i);
    case GgufValueType::kI16: return element<int16_t>(value, i);
    case GgufValueType::kU32: return element<uint32_t>(value, i);
    case GgufValueType::kI32: return element<int32_t>(value, i);
    case GgufValueType::kI64: return element<int64_t>(value, i);
    case GgufValueType::kU64:
      return static_cast<int64_t>(
          std::min<uint64_t>(element<uint64_t>(value, i), std::numeric_limits<int64_t>::max()));
    default: return std::nullopt;
  }
}

std::optional<double> real(const GgufValue& value, size_t i) {
  if (value.type == GgufValueType::kF32) return element<float>(value, i);
  if (value.type == GgufValueType::kF64) return element<double>(value, i);
  return std::nullopt;
}

std::string_view string_at(const std::byte*& p) {
  uint64_t length = 0;
  std::memcpy(&length, p, sizeof(length));
  const std::string_view text(reinterpret_cast<const char*>(p) + sizeof(length), length);
  p += sizeof(length) + length;
  return text;
}

}  // namespace

void Gguf::corrupt(std::string_view key, const std::string& problem) const {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: key '{}' {}", source_, key, problem));
}

/// The key's value if it is one value, or an array, as `array` says.
const GgufValue* Gguf::find_value(std::string_view key, bool array, const char* expected) const {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return nullptr;
  if (found->second.array != array) {
    corrupt(key, fmt::format("is {}; expected {}", describe(key), expected));
  }
  return &found->second;
}

std::optional<int64_t> Gguf::integer(std::string_view key, int64_t first, int64_t last) const {
  const std::string expected = fmt::format("a whole number from {} to {}", first, last);
  const GgufValue* value = find_value(key, false, expected.c_str());
  if (!value) return std::nullopt;
  const auto n = whole(*value, 0);
  if (!n || *n < first || *n > last) {
    corrupt(key, fmt::format("is {}; expected {}", describe(key), expected));
  }
  return n;
}

std::optional<double> Gguf::number(std::string_view key) const {
  const GgufValue* value = find_value(key, false, "a finite number");
  if (!value) return std::nullopt;
  const auto x = real(*value, 0);
  if (!x || !std::isfinite(*x)) {
    corrupt(key, fmt::format("is {}; expected a finite f32 or f64", describe(key)));
  }
  return x;
}

std::optional<bool> Gguf::flag(std::string_view key) const {
  const GgufValue* value = find_value(key, false, "a bool");
  if (!value) return std::nullopt;
  if (value->type != GgufValueType::kBool) {
    corrupt(key, fmt::format("is {}; expected a bool", describe(key)));
  }
  return *value->data != std::byte{0};
}

std::optional<std::string_view> Gguf::text(std::string_view key) const {
  const GgufValue* value = find_value(key, false, "a string");
  if (!value) return std::nullopt;
  if (value->type != GgufValueType::kString) {
    corrupt(key, fmt::format("is {}; expected a string", describe(key)));
  }
  const std::byte* p = value->data;
  return string_at(p);
}

std::optional<std::vector<int64_t>> Gguf::integers(std::string_view key, int64_t first,
                                                   int64_t last) const {
  const GgufValue* value = find_value(key, true, "an array of whole numbers");
  if (!value) return std::nullopt;
  std::vector<int64_t> out(value->count);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto n = whole(*value, i);
    if (!n) corrupt(key, fmt::format("is {}; expected whole numbers", describe(key)));
    if (*n < first || *n > last) {
      corrupt(key, fmt::format("holds {} at place {}; expected {} to {}", *n, i, first, last));
    }
    out[i] = *n;
  }
  return out;
}

std::optional<std::vector<float>> Gguf::numbers(std::string_view key) const {
  const GgufValue* value = find_value(key, true, "an array of f32 or f64");
  if (!value) return std::nullopt;
  std::vector<float> out(value->count);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto x = real(*value, i);
    if (!x) corrupt(key, fmt::format("is {}; expected f32 or f64", describe(key)));
    out[i] = static_cast<float>(*x);
    if (!std::isfinite(out[i])) {
      corrupt(key, fmt::format("holds {} at place {}; expected finite numbers", *x, i));
    }
  }
  return out;
}

std::optional<std::vector<bool>> Gguf::flags(std::string_view key) const {
  const GgufValue* value = find_value(key, true, "an array of bool");
  if (!value) return std::nullopt;
  if (value->type != GgufValueType::kBool) {
    corrupt(key, fmt::format("is {}; expected an array of bool", describe(key)));
  }
  std::vector<bool> out(value->count);
  for (size_t i = 0; i < out.size(); ++i) out[i] = value->data[i] != std::byte{0};
  return out;
}

std::optional<std::vector<std::string_view>> Gguf::texts(std::string_view key) const {
  const GgufValue* value = find_value(key, true, "an array of strings");
  if (!value) return std::nullopt;
  if (value->type != GgufValueType::kString) {
    corrupt(key, fmt::format("is {}; expected an array of strings", describe(key)));
  }
  std::vector<std::string_view> out(value->count);
  const std::byte* p = value->data;
  for (std::string_view& text : out) text = string_at(p);
  return out;
}

std::string Gguf::describe(std::string_view key) const {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return "absent";
  const GgufValue& value = found->second;
  if (value.array) return fmt::format("{}[{}]", to_string(value.type), value.count);
  if (const auto n = whole(value, 0)) return fmt::format("{} {}", to_string(value.type), *n);
  if (const auto x = real(value, 0)) return fmt::format("{} {}", to_string(value.type), *x);
  if (value.type == GgufValueType::kBool) return *value.data == std::byte{0} ? "false" : "true";
  constexpr size_t kLongest = 60;
  const std::byte* p = value.data;
  const std::string_view text = string_at(p);
  return fmt::format("\"{}\"{}", text.substr(0, kLongest), text.size() > kLongest ? "..." : "");
}

}  // namespace pith
