// Every target of the fuzzers over its seeds and some hundred changes of them, the same each time:
// each target works, and what once broke one is found again. `make fuzz` looks for more.
//   PITH_FUZZ_CHANGES=N  as many changes; PITH_FUZZ_SEED=N  others
//   PITH_FUZZ_KEEP=FILE  writes each input there before it runs

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <random>

#include "fuzz/fuzz.h"

namespace pith::fuzz {

void PrintTo(const Target& target, std::ostream* out) { *out << target.name; }

namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Small changes of an input: numbers at the edges of their types, in bytes and in text, pieces
/// that are missing, doubled, cut off or another seed's.
class Changer {
 public:
  Changer(std::vector<std::string> seeds, uint64_t seed)
      : seeds_(std::move(seeds)), random_(seed) {}

  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (size_t n = 1 + below(4); n > 0; --n) change(input);
    return input;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }

  void change(std::string& x) {
    const size_t at = below(x.size()), length = std::min(x.size() - at, size_t{1} << below(8));
    switch (below(8)) {
      case 0:
      case 1: return put_number(x, at);
      case 2: return put_digits(x, at);
      case 3:
        if (!x.empty()) x[at] = static_cast<char>(random_());
        return;
      case 4: x.erase(at, length); return;
      case 5: x.insert(below(x.size() + 1), x.substr(at, length)); return;
      case 6: {
        const std::string& other = seeds_[below(seeds_.size())];
        const size_t from = below(other.size());
        x.replace(at, length, other, from, size_t{1} << below(8));
        return;
      }
      default: x.resize(below(4) == 0 ? at : x.size());
    }
  }

  void put_number(std::string& x, size_t at) {
    static constexpr std::array<uint64_t, 18> kNumbers = {
        0,   1,   2,     3,          7,          16,         64,         127,        128,
        255, 256, 65535, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 40, 1ull << 63, ~0ull};
    const uint64_t number = kNumbers[below(kNumbers.size())];
    const size_t width = std::min(size_t{1} << below(4), x.size() - at);
    for (size_t i = 0; i < width; ++i) x[at + i] = static_cast<char>(number >> (8 * i));
  }

  void put_digits(std::string& x, size_t at) {
    static constexpr std::array<const char*, 14> kTexts = {"0",
                                                           "-1",
                                                           "1e308",
                                                           "1e-320",
                                                           "9223372036854775808",
                                                           "18446744073709551616",
                                                           "0.5",
                                                           "[]",
                                                           "null",
                                                           "{}",
                                                           "\"\"",
                                                           "4294967296",
                                                           "true",
                                                           "1e999"};
    const size_t from = x.find_first_of("0123456789", at);
    if (from == std::string::npos) return;
    const size_t to = std::min(x.find_first_not_of("0123456789.", from), x.size());
    x.replace(from, to - from, kTexts[below(kTexts.size())]);
  }

  const std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

std::string shown(const std::string& input) {
  std::string out;
  for (const char c : input.substr(0, 400))
    out += c >= ' ' && c <= '~' ? std::string(1, c) : "\\" + std::to_string(c & 0xff) + ";";
  return out + (input.size() > 400 ? "..." : "");
}

class Fuzz : public testing::TestWithParam<Target> {
 protected:
  void run(const std::string& input, bool is_seed = false) {
    if (const char* keep = std::getenv("PITH_FUZZ_KEEP"))
      std::ofstream(keep, std::ios::binary) << input;
    try {
      const bool taken = GetParam().run(input);
      ASSERT_TRUE(taken || !is_seed) << "a seed is refused: " << last_refusal() << "\n"
                                     << shown(input);
    } catch (const std::exception& e) {
      FAIL() << e.what() << "\n" << input.size() << " bytes: " << shown(input);
    }
  }
};

TEST_P(Fuzz, OnlyRefuses) {
  const std::vector<std::string> seeds = GetParam().seeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) ASSERT_NO_FATAL_FAILURE(run(seed, true));
  Changer changer(seeds, number_from("PITH_FUZZ_SEED", 1));
  const auto count = number_from("PITH_FUZZ_CHANGES", static_cast<uint64_t>(GetParam().changes));
  for (uint64_t i = 0; i < count; ++i)
    ASSERT_NO_FATAL_FAILURE(run(changer.next())) << "change " << i;
  ASSERT_NO_FATAL_FAILURE(run(""));
}

INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, testing::ValuesIn(all_targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace pith::fuzz
