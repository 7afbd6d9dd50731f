#include "fuzz/fuzz.h"

#include <fstream>
#include <iterator>

#include "model/test_files.h"

namespace pith::fuzz {

std::vector<Target> all_targets() {
  std::vector<Target> all;
  for (const auto& some : {file_targets(), text_targets(), state_targets(), cache_targets(),
                           c_api_targets(), serve_targets()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

std::string& last_refusal() {
  static std::string text;
  return text;
}

const std::filesystem::path& folder() {
  static const testing_files::TemporaryFolder own;
  return own.path();
}

std::filesystem::path file(const std::string& name, std::string_view bytes) {
  const auto path = folder() / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string read_all(const std::filesystem::path& path) { return testing_files::read_file(path); }

void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte b : bytes) sum += static_cast<unsigned>(b);
  volatile unsigned seen = sum;
  (void)seen;
}

}  // namespace pith::fuzz
