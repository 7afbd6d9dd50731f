#pragma once
// Targets of the fuzzers: one for each thing that reads bytes of strangers. A target takes any
// bytes. It may refuse them with an Error, and nothing else: no crash, no hang, no memory beyond
// the limits, no broken promise. libFuzzer runs a target (fuzz_main.cc, `make fuzz`); fuzz_test.cc
// runs each over its seeds and some hundred changes of them.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "pith/error.h"

namespace pith::fuzz {

struct Target {
  const char* name;
  std::vector<std::string> (*seeds)();
  bool (*run)(std::string_view input);  ///< whether it was taken, as all seeds must be
  int changes = 300;                    ///< inputs of fuzz_test.cc, beside the seeds
};

std::span<const Target> file_targets();
std::span<const Target> text_targets();
std::span<const Target> state_targets();
std::span<const Target> cache_targets();
std::span<const Target> c_api_targets();
std::span<const Target> serve_targets();
std::vector<Target> all_targets();

/// A promise that an input broke.
struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};
inline void need(bool holds, const std::string& promise) {
  if (!holds) throw Broken(promise);
}

/// The words of the last refusal, for messages.
std::string& last_refusal();

/// Whether `body` ended without an Error. kInternal is a bug of ours.
template <class Body>
bool harmless(const Body& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    need(error.code() != ErrorCode::kInternal, error.what());
    last_refusal() = error.what();
    return false;
  }
}

/// Choices from an input: zeros once it has ended.
class Choices {
 public:
  explicit Choices(std::string_view input) : left_(input) {}
  uint8_t byte() {
    if (left_.empty()) return 0;
    const auto first = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return first;
  }
  size_t below(size_t n) { return n <= 256 ? byte() % n : (size_t{byte()} << 8 | byte()) % n; }
  bool ended() const { return left_.empty(); }

 private:
  std::string_view left_;
};

/// A folder of this process, and a file in it with these bytes.
const std::filesystem::path& folder();
std::filesystem::path file(const std::string& name, std::string_view bytes);
std::string read_all(const std::filesystem::path& path);
/// Reads every byte, so that a sanitizer sees what is not there.
void touch(std::span<const std::byte> bytes);

/// A model of one layer and a few kilobytes, as a GGUF file with a tokenizer.
std::string tiny_gguf();

}  // namespace pith::fuzz
