// libFuzzer's program. PITH_FUZZ_TARGET names the target; `fuzz list` prints all of them, and
// `fuzz seeds FOLDER` writes the target's seeds.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fuzz/fuzz.h"

namespace {

using pith::fuzz::Target;

const Target& chosen() {
  static const Target target = [] {
    const char* name = std::getenv("PITH_FUZZ_TARGET");
    for (const Target& t : pith::fuzz::all_targets())
      if (name != nullptr && std::strcmp(name, t.name) == 0) return t;
    std::fprintf(stderr, "fuzz: PITH_FUZZ_TARGET names no target; `fuzz list` prints them\n");
    std::_Exit(2);
  }();
  return target;
}

void write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  size_t i = 0;
  for (const std::string& seed : chosen().seeds()) {
    std::FILE* out = std::fopen((folder / ("seed-" + std::to_string(i++))).c_str(), "wb");
    if (out == nullptr || std::fwrite(seed.data(), 1, seed.size(), out) != seed.size())
      std::_Exit(2);
    std::fclose(out);
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const char* word = *argc > 1 ? (*argv)[1] : "";
  if (std::strcmp(word, "list") == 0) {
    for (const Target& t : pith::fuzz::all_targets()) std::puts(t.name);
    std::exit(0);
  }
  if (std::strcmp(word, "seeds") == 0 && *argc > 2) {
    write_seeds((*argv)[2]);
    std::exit(0);
  }
  chosen();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    (void)chosen().run({reinterpret_cast<const char*>(data), size});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fuzz: %s\n", e.what());
    std::abort();
  }
  return 0;
}
