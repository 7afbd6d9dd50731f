#include "core/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "core/json_file.h"
#include "core/mapped_file.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeader = 100'000'000;  // the reference implementation's own limit

struct TypeRow {
  TensorType type;
  const char* name;
  size_t size;
};

constexpr std::array<TypeRow, 15> kTypes = {{{TensorType::kBool, "BOOL", 1},
                                             {TensorType::kU8, "U8", 1},
                                             {TensorType::kI8, "I8", 1},
                                             {TensorType::kF8E5M2, "F8_E5M2", 1},
                                             {TensorType::kF8E4M3, "F8_E4M3", 1},
                                             {TensorType::kI16, "I16", 2},
                                             {TensorType::kU16, "U16", 2},
                                             {TensorType::kF16, "F16", 2},
                                             {TensorType::kBF16, "BF16", 2},
                                             {TensorType::kI32, "I32", 4},
                                             {TensorType::kU32, "U32", 4},
                                             {TensorType::kF32, "F32", 4},
                                             {TensorType::kF64, "F64", 8},
                                             {TensorType::kI64, "I64", 8},
                                             {TensorType::kU64, "U64", 8}}};

const TypeRow& row_of(TensorType type) { return kTypes[static_cast<size_t>(type)]; }

[[noreturn]] void corrupt(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}", file, what));
}

/// a * b, or nothing if it does not fit.
std::optional<size_t> multiply(size_t a, size_t b) {
  size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

size_t non_negative(const json& value, const std::string& file, const std::string& name,
                    const char* field) {
  if (!value.is_number_unsigned()) {
    corrupt(file, fmt::format("tensor '{}': {} must be whole numbers, not {}", name, field,
                              value.dump(-1, ' ', false, json::error_handler_t::replace)));
  }
  return value.get<size_t>();
}

TensorType parse_type(const json& entry, const std::string& file, const std::string& name) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) {
    corrupt(file, fmt::format("tensor '{}' has no dtype", name));
  }
  const auto text = found->get<std::string>();
  std::vector<std::string> known;
  for (const TypeRow& row : kTypes) {
    if (text == row.name) return row.type;
    known.emplace_back(row.name);
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: tensor '{}' has dtype '{}'; known: {}",
                                                   file, name, text, fmt::join(known, ", ")));
}

/// One entry of the header. `begin` is where its bytes start, counted from the end of the header.
struct Entry {
  Tensor tensor;
  size_t begin = 0;
};

Entry parse_entry(const json& entry, const std::string& file, const std::string& name,
                  size_t data_bytes) {
  if (!entry.is_object()) corrupt(file, fmt::format("tensor '{}' is not an object", name));
  Entry out;
  out.tensor.name = name;
  out.tensor.file = file;
  out.tensor.type = parse_type(entry, file, name);
  const auto shape = entry.find("shape");
  const auto offsets = entry.find("data_offsets");
  if (shape == entry.end() || !shape->is_array()) {
    corrupt(file, fmt::format("tensor '{}' has no shape", name));
  }
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    corrupt(file, fmt::format("tensor '{}' has no pair of data_offsets", name));
  }
  std::optional<size_t> bytes = size_of(out.tensor.type);
  for (const json& n : *shape) {
    out.tensor.shape.push_back(non_negative(n, file, name, "shape"));
    if (bytes) bytes = multiply(*bytes, out.tensor.shape.back());
  }
  out.begin = non_negative((*offsets)[0], file, name, "data_offsets");
  const size_t end = non_negative((*offsets)[1], file, name, "data_offsets");
  if (end < out.begin || end > data_bytes) {
    corrupt(file, fmt::format("tensor '{}' lies at bytes {} to {}, but the file holds {} bytes of "
                              "data; it is truncated or damaged",
                              name, out.begin, end, data_bytes));
  }
  out.tensor.bytes = end - out.begin;
  if (!bytes || *bytes != out.tensor.bytes) {
    corrupt(file,
            fmt::format("tensor '{}' of shape {} and dtype {} does not fit its {} bytes", name,
                        out.tensor.shape_text(), to_string(out.tensor.type), out.tensor.bytes));
  }
  return out;
}

}  // namespace

size_t size_of(TensorType type) { return row_of(type).size; }
const char* to_string(TensorType type) { return row_of(type).name; }

std::string Tensor::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

DType Tensor::dtype() const {
  switch (type) {
    case TensorType::kF32: return DType::kF32;
    case TensorType::kF16: return DType::kF16;
    case TensorType::kBF16: return DType::kBF16;
    default: break;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tensor '{}' has dtype {}; this use supports F32, F16 and BF16", file,
                          name, to_string(type)));
}

void SafeTensors::add_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  auto mapping = std::make_shared<const MappedFile>(path);
  const size_t size = mapping->size();
  refuse_stand_in({reinterpret_cast<const char*>(mapping->data()), size}, file);
  if (size < kLengthBytes) {
    corrupt(file, fmt::format("{} bytes are too few for a safetensors file", size));
  }
  uint64_t length = 0;
  std::memcpy(&length, mapping->data(), kLengthBytes);
  if (length > kMaxHeader || length > size - kLengthBytes) {
    corrupt(file, fmt::format("its header claims {} bytes, the file has {}; it is truncated or not "
                              "a safetensors file",
                              length, size));
  }
  const auto* text = reinterpret_cast<const char*>(mapping->data()) + kLengthBytes;
  const json header = parse_json_object({text, static_cast<size_t>(length)}, file + " (header)");
  const std::byte* data = mapping->data() + kLengthBytes + length;
  const size_t data_bytes = size - kLengthBytes - length;

  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(parse_entry(value, file, name, data_bytes));
      continue;
    }
    if (!value.is_object()) corrupt(file, "__metadata__ is not an object");
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) corrupt(file, fmt::format("metadata '{}' is not a string", key));
      metadata_[key] = entry.get<std::string>();
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.tensor.bytes) < std::pair(b.begin, b.tensor.bytes);
  });
  size_t end = 0;
  for (Entry& e : entries) {
    if (e.begin != end) {
      corrupt(file, fmt::format("tensor '{}' starts at byte {}, where {} was expected: tensors "
                                "overlap or leave a hole",
                                e.tensor.name, e.begin, end));
    }
    end = e.begin + e.tensor.bytes;
    e.tensor.data = data + e.begin;
    if (reinterpret_cast<uintptr_t>(e.tensor.data) % size_of(e.tensor.type) != 0) {
      auto copy =
          std::make_shared<std::vector<std::byte>>(e.tensor.data, e.tensor.data + e.tensor.bytes);
      e.tensor.data = copy->data();
      copies_.push_back(std::move(copy));
    }
    const std::string name = e.tensor.name;
    const auto [where, fresh] = tensors_.emplace(name, std::move(e.tensor));
    if (!fresh) corrupt(file, fmt::format("tensor '{}' is in {} too", name, where->second.file));
  }
  if (end != data_bytes) {
    corrupt(file, fmt::format("{} bytes of data, but its tensors account for {}", data_bytes, end));
  }
  mappings_.push_back(std::move(mapping));
}

SafeTensors SafeTensors::open(const std::filesystem::path& file) {
  SafeTensors out;
  out.source_ = file.string();
  out.add_file(file);
  return out;
}

SafeTensors SafeTensors::open_folder(const std::filesystem::path& folder) {
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  if (is_there(single)) return open(single);
  if (!is_there(index)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} has neither model.safetensors nor model.safetensors.index.json; "
                            "weights of other formats (.bin, .pth, .onnx) must be converted to "
                            "safetensors first",
                            folder.string()));
  }
  const json parsed = read_json_file(index, kMostTableBytes);
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object() || map->empty()) {
    corrupt(index.string(), "no weight_map");
  }
  SafeTensors out;
  out.source_ = index.string();
  std::set<std::string> shards, missing;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) corrupt(index.string(), fmt::format("'{}': no file name", name));
    const auto file = shard.get<std::string>();
    // A name with a folder in it could reach outside the model's.
    if (file.empty() || std::filesystem::path(file).filename() != file) {
      corrupt(index.string(), fmt::format("'{}' is not the name of a file in the folder", file));
    }
    shards.insert(file);
    if (!is_there(folder / file)) missing.insert(file);
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} lacks {} of the {} files that its model.safetensors.index.json "
                            "names, {} first; is the download complete?",
                            folder.string(), missing.size(), shards.size(), *missing.begin()));
  }
  for (const std::string& file : shards) out.add_file(folder / file);
  for (const auto& [name, shard] : map->items()) {
    const Tensor* found = out.find(name);
    if (!found || std::filesystem::path(found->file).filename() != shard.get<std::string>()) {
      corrupt(index.string(),
              fmt::format("tensor '{}' is not in {}", name, shard.get<std::string>()));
    }
  }
  return out;
}

const Tensor* SafeTensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const Tensor& SafeTensors::at(std::string_view name) const {
  if (const Tensor* found = find(name)) return *found;
  throw Error(ErrorCode::kNotFound, fmt::format("{}: there is no tensor '{}' among its {}", source_,
                                                name, tensors_.size()));
}

}  // namespace pith
