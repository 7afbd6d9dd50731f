#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/json_file.h"
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

void SafeTensorsWriter::fail(const char* doing) const {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", doing, path_.string(), std::strerror(errno)));
}

void SafeTensorsWriter::write(const void* data, size_t bytes) {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(file_, p, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    p += done;
    bytes -= static_cast<size_t>(done);
  }
}

SafeTensorsWriter::SafeTensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), temporary_(path.string() + ".partial") {
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
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail("create");
  try {
    write(&length, sizeof(length));
    write(text.data(), text.size());
  } catch (...) {
    ::close(file_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

SafeTensorsWriter::~SafeTensorsWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void SafeTensorsWriter::append(const void* data, size_t bytes) {
  if (bytes > left_) {
    throw Error(ErrorCode::kInternal,
                fmt::format("{}: {} bytes more than were declared", path_.string(), bytes - left_));
  }
  write(data, bytes);
  left_ -= bytes;
}

void SafeTensorsWriter::finish() {
  if (left_ != 0) {
    throw Error(ErrorCode::kInternal,
                fmt::format("{}: {} declared bytes never came", path_.string(), left_));
  }
  if (::close(std::exchange(file_, -1)) != 0 ||
      std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    fail("finish");
  }
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
