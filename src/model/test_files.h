#pragma once
// Help for the tests of file formats: temporary folders, raw files, and errors checked by content.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "pith/error.h"

namespace pith::testing_files {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "pith_test_XXXXXX").string();
    if (!mkdtemp(name.data())) throw Error(ErrorCode::kIo, "no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A safetensors file of exactly these bytes.
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

/// Runs `f`, which must throw Error(code) whose message contains each of `words`.
template <class F>
void expect_error(ErrorCode code, const std::vector<std::string>& words, F&& f) {
  try {
    f();
    ADD_FAILURE() << "expected an error: " << to_string(code)
                  << (words.empty() ? "" : " about " + words.front());
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    for (const std::string& word : words) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos)
          << "'" << word << "' is not in: " << e.what();
    }
  }
}

}  // namespace pith::testing_files
