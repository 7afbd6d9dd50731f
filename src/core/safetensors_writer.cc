#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/safetensors.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kAlign = 64;  // the data begin at a multiple of this

size_t bytes_of(const TensorSpec& spec) {
  size_t bytes = size_of(spec.type);
  for (size_t n : spec.shape) bytes *= n;
  return bytes;
}

}  // namespace

SafeTensorsWriter::SafeTensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), file_(path) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const TensorSpec& spec : specs) {
    if (header.contains(spec.name)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: two tensors called '{}'", path.string(), spec.name));
    }
    const size_t end = left_ + bytes_of(spec);
    header[spec.name] = {
        {"dtype", to_string(spec.type)}, {"shape", spec.shape}, {"data_offsets", {left_, end}}};
    left_ = end;
  }
  std::string text = specs.empty() && metadata.empty() ? "{}" : header.dump();
  text.append((kAlign - (8 + text.size()) % kAlign) % kAlign, ' ');
  const uint64_t length = text.size();
  file_.write(&length, sizeof(length));
  file_.write(text.data(), text.size());
}

void SafeTensorsWriter::append(const void* data, size_t bytes) {
  if (bytes > left_) {
    throw Error(ErrorCode::kInternal,
                fmt::format("{}: {} bytes more than were declared", path_.string(), bytes - left_));
  }
  file_.write(data, bytes);
  left_ -= bytes;
}

void SafeTensorsWriter::finish() {
  if (left_ != 0) {
    throw Error(ErrorCode::kInternal,
                fmt::format("{}: {} declared bytes never came", path_.string(), left_));
  }
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorBytes& a, const TensorBytes& b) {
    return size_of(a.spec.type) > size_of(b.spec.type);
  });
  std::vector<TensorSpec> specs;
  for (const TensorBytes& t : tensors) specs.push_back(t.spec);
  SafeTensorsWriter writer(path, specs, metadata);
  for (const TensorBytes& t : tensors) writer.append(t.data, bytes_of(t.spec));
  writer.finish();
}

}  // namespace pith
