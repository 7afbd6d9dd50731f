// Calls of the system that fail in the life of a session, one at a time: the program ends with a
// clear error and the session on the disk is the old one or the new one, whole.
//   PITH_FAULTS=N  as many failed allocations; 60 otherwise

#include <fmt/format.h>

#include "cli_harness.h"
#include "fuzz/fuzz.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using test::Result;

constexpr const char* kShim = "libfailing_calls.so";

class CliFaults : public test::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    const auto shim = build_dir() / "bin" / kShim;
    if (!fs::exists(shim)) GTEST_SKIP() << "no " << kShim << " beside a sanitizer's own malloc";
    setenv("LD_PRELOAD", shim.c_str(), 1);
    test::write(folder_ / "tiny.gguf", fuzz::tiny_gguf());
    const Result first = session(false);
    ASSERT_EQ(first.status, 0) << first.err;
    old_ = test::read(folder_ / "s.pith");
    const Result second = session(true);
    ASSERT_EQ(second.status, 0) << second.err;
  }
  void TearDown() override {
    for (const char* name : {"LD_PRELOAD", "PITH_FAIL", "PITH_FAIL_COUNT"}) unsetenv(name);
    Cli::TearDown();
  }

  Result session(bool loads) {
    std::vector<std::string> line = {"run",
                                     "-m",
                                     (folder_ / "tiny.gguf").string(),
                                     "-p",
                                     "the hen in a tent then ran",
                                     "-n",
                                     "3",
                                     "--temp",
                                     "0",
                                     "--ignore-eos",
                                     "-q",
                                     "-t",
                                     "2",
                                     "--session-save",
                                     (folder_ / "s.pith").string(),
                                     "--session-overwrite"};
    if (loads) line.insert(line.end(), {"--session-load", (folder_ / "s.pith").string()});
    return finish(start(line));
  }

  /// How often the session makes a call.
  long count(const std::string& call) {
    test::write(folder_ / "s.pith", old_);
    setenv("PITH_FAIL", (call + ":999999999").c_str(), 1);
    setenv("PITH_FAIL_COUNT", (folder_ / "count").c_str(), 1);
    EXPECT_EQ(session(true).status, 0);
    unsetenv("PITH_FAIL_COUNT");
    return std::stol(test::read(folder_ / "count"));
  }

  void fail(const std::string& call, long n) {
    SCOPED_TRACE(fmt::format("PITH_FAIL={}:{}", call, n));
    test::write(folder_ / "s.pith", old_);
    setenv("PITH_FAIL", fmt::format("{}:{}", call, n).c_str(), 1);
    const Result result = session(true);
    unsetenv("PITH_FAIL");
    if (result.status == 0) return;  // whoever called could do without
    EXPECT_TRUE(result.status >= 10 && result.status <= 17) << result.status << " " << result.err;
    EXPECT_NE(result.err.find("pith: error: "), std::string::npos) << result.err;
    const Result verified = finish(start({"session", "verify", (folder_ / "s.pith").string()}));
    EXPECT_EQ(verified.status, 0) << verified.err;
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }

  void fail_some(const std::string& call, long most) {
    const long all = count(call);
    ASSERT_GT(all, 0);
    const long step = std::max(all / most, 1L);
    // An odd offset, so that a period of the program's is not met at one place alone.
    for (long i = 0, n = 0; n < all; ++i, n = i * step + i % 7 * (step > 7 ? 1 : 0)) fail(call, n);
  }

  std::string old_;
};

TEST_F(CliFaults, Allocations) {
  const char* often = getenv("PITH_FAULTS");
  fail_some("malloc", often == nullptr ? 60 : std::stol(often));
}

// A limit of the address space, from where the program starts at all up to where a session lives. A
// single mapping that fails where others do not is no such test: oneDNN crashes between its own.
TEST_F(CliFaults, AddressSpace) {
  const std::string line = "run -m tiny.gguf -p 'the hen in a tent then ran' -n 3 --temp 0 -q -t 2";
  bool lives = false;
  size_t refused = 0;
  for (int mebibytes = 60; mebibytes < 600 && !lives; mebibytes += 4) {
    const std::string limit = fmt::format("ulimit -v {}; ", mebibytes << 10);
    if (shell(limit + "$PITH --version").status != 0) continue;
    const Result result = shell(limit + "$PITH " + line);
    lives = result.status == 0;
    if (lives) continue;
    ++refused;
    EXPECT_TRUE(result.status >= 10 && result.status <= 17) << mebibytes << " " << result.status;
    EXPECT_NE(result.err.find("pith: error: "), std::string::npos) << mebibytes << result.err;
  }
  EXPECT_TRUE(lives);
  EXPECT_GT(refused, 0u);
}

TEST_F(CliFaults, WritesOfASession) {
  for (const char* call : {"write", "fsync", "rename"}) fail_some(call, 100);
}

}  // namespace
}  // namespace pith
