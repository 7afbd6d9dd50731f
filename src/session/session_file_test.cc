// Session files: what was written is read, whatever is damaged or invented is refused, and a writer
// that is killed or runs out of room leaves the file that was there, or the new one, whole.

#include "session/session_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "core/output_file.h"
#include "core/safetensors.h"
#include "device_node.h"
#include "model/test_files.h"
#include "pith/error.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing_files::expect_error;
using testing_files::TemporaryFolder;

/// A section of `count` numbers from `first` on.
SessionSection numbers(const std::string& name, uint64_t first, size_t count) {
  return {name, [=](Archive& a) {
            size_t n = count;
            a.number(n, size_t{1} << 40);
            for (size_t i = 0; i < count; ++i) {
              uint64_t x = first + i;
              a.number(x, UINT64_MAX);
            }
          }};
}

SessionContents contents(std::span<const int32_t> tokens, uint64_t first = 7, size_t count = 40) {
  SessionContents c;
  c.key = {{"model", "a"}, {"policy", "exact \"quoted\""}, {"context", "512"}};
  c.tokens = tokens;
  c.sections = {numbers("cache", first, 1), numbers("layers.0", first, count),
                numbers("layers.1", first, 0)};
  return c;
}

std::vector<uint64_t> read_numbers(const SessionFile& file, const std::string& section) {
  std::vector<uint64_t> all;
  file.load(section, [&](Archive& a) {
    size_t n = 0;
    a.number(n, size_t{1} << 40);
    a.check_left(n, sizeof(uint64_t));
    all.resize(n);
    for (uint64_t& x : all) a.number(x, UINT64_MAX);
  });
  return all;
}

size_t entries(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

const std::vector<int32_t> kTokens = {1, 5, 2, 900, 0};

TEST(SessionFile, WhatWasWrittenIsRead) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith";
  for (const size_t tokens : {0, 1, 5}) {
    const auto some = std::span(kTokens).first(tokens);
    write_session_file(path, contents(some), {.replace = true});
    const SessionFile file(path);
    file.verify();
    EXPECT_EQ(file.key(), contents(some).key);
    EXPECT_TRUE(std::ranges::equal(file.tokens(), some));
    ASSERT_EQ(file.sections().size(), 3u);
    EXPECT_EQ(file.sections()[1].offset % 64, 0u);
    EXPECT_EQ(read_numbers(file, "layers.0").back(), 46u);
    EXPECT_TRUE(read_numbers(file, "layers.1").empty());
    expect_error(ErrorCode::kCorrupt, {"layers.7"}, [&] { read_numbers(file, "layers.7"); });
    expect_error(ErrorCode::kCorrupt, {"left over"},
                 [&] { file.load("layers.0", [](Archive&) {}); });
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_EQ(entries(folder.path()), 1u);
  }
}

TEST(SessionFile, TheDataPartIsASafetensorsFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith", part = folder.path() / "part";
  write_session_file(path, contents(kTokens));
  const std::string all = testing_files::read_file(path);
  uint64_t header = 0;
  std::memcpy(&header, all.data() + 24, sizeof(header));
  testing_files::write_file(part, all.substr(64 + header));
  const SafeTensors tensors = SafeTensors::open(part);
  const Tensor& tokens = tensors.at("tokens");
  EXPECT_EQ(tokens.shape_text(), "[5]");
  EXPECT_EQ(std::memcmp(tokens.data, kTokens.data(), tokens.bytes), 0);
  EXPECT_EQ(tensors.tensors().size(), 4u);
}

TEST(SessionFile, AnotherKeyIsRefusedByItsField) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith";
  write_session_file(path, contents(kTokens));
  const SessionFile file(path);
  const SessionKey good = contents(kTokens).key;
  file.check_key(good);
  for (size_t i = 0; i < good.size(); ++i) {
    SessionKey other = good;
    other[i].second += "x";
    expect_error(ErrorCode::kInvalidArgument,
                 {"its " + good[i].first, good[i].second, other[i].second},
                 [&] { file.check_key(other); });
  }
  SessionKey more = good;
  more.emplace_back("seed", "3");
  expect_error(ErrorCode::kInvalidArgument, {"seed"}, [&] { file.check_key(more); });
  expect_error(ErrorCode::kInvalidArgument, {"3 things"}, [&] {
    file.check_key({good.begin(), good.end() - 1});
  });
}

TEST(SessionFile, EveryFlippedByteAndEveryTruncationIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith", bad = folder.path() / "bad";
  write_session_file(path, contents(kTokens));
  const std::string good = testing_files::read_file(path);
  const auto refused = [&](const std::string& bytes) {
    testing_files::write_file(bad, bytes);
    try {
      SessionFile(bad).verify();
      return false;
    } catch (const Error& e) {
      return e.code() == ErrorCode::kCorrupt || e.code() == ErrorCode::kUnsupported;
    }
  };
  for (size_t i = 0; i < good.size(); ++i) {
    std::string flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    EXPECT_TRUE(refused(flipped)) << i;
    EXPECT_TRUE(refused(good.substr(0, i))) << i;
  }
  EXPECT_TRUE(refused(good + "x"));
}

/// The file with its header replaced and all lengths and digests made right again.
std::string with_header(const std::string& good, std::string header) {
  uint64_t before = 0;
  std::memcpy(&before, good.data() + 24, sizeof(before));
  const std::string data = good.substr(64 + before);
  header.append((64 - header.size() % 64) % 64, ' ');
  std::string out = good.substr(0, 64) + header + data;
  const uint64_t length = out.size(), header_length = header.size();
  std::memcpy(out.data() + 16, &length, sizeof(length));
  std::memcpy(out.data() + 24, &header_length, sizeof(header_length));
  const auto digest = [](const std::string& x) {
    return digest_of(std::as_bytes(std::span(x.data(), x.size())));
  };
  const Digest of_header = digest(header), of_data = digest(data);
  std::memcpy(out.data() + 32, &of_header, sizeof(of_header));
  std::memcpy(out.data() + 48, &of_data, sizeof(of_data));
  return out;
}

TEST(SessionFile, WhatIsInventedIsRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith", bad = folder.path() / "bad";
  write_session_file(path, contents(kTokens));
  const std::string good = testing_files::read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, good.data() + 24, sizeof(length));
  const std::string header = good.substr(64, length);
  const auto take = [&](const std::string& with) {
    testing_files::write_file(bad, with_header(good, with));
    SessionFile(bad).verify();
  };
  take(header);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string with = header;
    const size_t at = with.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return with.replace(at, from.size(), to);
  };
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& with :
       {changed("\"tokens\":5", "\"tokens\":4294967296"), changed("\"tokens\":5", "\"tokens\":6"),
        changed("\"tokens\":5", "\"tokens\":-1"),
        changed("\"tokens\":5", "\"tokens\":4611686018427387905"),
        changed("\"length\":328", "\"length\":329"), changed("\"length\":328", "\"length\":400"),
        changed("\"length\":328", "\"length\":18446744073709551615"),
        changed("\"length\":16", "\"length\":1e3"), changed("layers.0", "layers.1"),
        changed("layers.0", "tokens"), changed("\"created\":\"", "\"created\":5,\"x\":\""),
        changed("\"key\":{", "\"key\":{\"a\":{},"), changed("\"sections\":[", "\"sections\":[5,"),
        std::string("{}"), std::string("[]"), std::string("nothing"), std::string(), deep})
    expect_error(ErrorCode::kCorrupt, {bad.string()}, [&] { take(with); });
  // A length that is the section's own, of a section that is shorter than it says.
  std::string with = changed("\"length\":328", "\"length\":327");
  testing_files::write_file(bad, with_header(good, with));
  expect_error(ErrorCode::kCorrupt, {"layers.0"}, [&] { SessionFile(bad).verify(); });
}

TEST(SessionFile, IsNotOverwrittenUnlessAsked) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith";
  write_session_file(path, contents(kTokens, 1));
  expect_error(ErrorCode::kIo, {"a.pith", "there already"},
               [&] { write_session_file(path, contents(kTokens, 2)); });
  EXPECT_EQ(read_numbers(SessionFile(path), "layers.0")[0], 1u);
  write_session_file(path, contents(kTokens, 2), {.replace = true});
  EXPECT_EQ(read_numbers(SessionFile(path), "layers.0")[0], 2u);
  // Nor is a name taken that somebody else took while the file was being written.
  SessionContents slow = contents(kTokens, 3);
  const fs::path late = folder.path() / "late.pith";
  slow.sections.push_back({"slow", [&](Archive&) { testing_files::write_file(late, "theirs"); }});
  expect_error(ErrorCode::kIo, {"late.pith"}, [&] { write_session_file(late, slow); });
  EXPECT_EQ(testing_files::read_file(late), "theirs");
  EXPECT_EQ(entries(folder.path()), 2u);
  const TemporaryFolder devices;
  for (const unsigned minor : {test::kNull, test::kFull}) {
    const std::string device = test::device_node(devices.path(), minor);
    if (device.empty()) continue;
    expect_error(ErrorCode::kIo, {device},
                 [&] { write_session_file(device, contents(kTokens), {.replace = true}); });
    EXPECT_TRUE(fs::is_character_file(device));
  }
}

TEST(SessionFile, ACopyIsTheSameSessionWithoutItsNote) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith", copy = folder.path() / "b.pith";
  SessionContents noted = contents(kTokens);
  noted.note = "whose it is";
  write_session_file(path, noted);
  const SessionFile file(path);
  ASSERT_EQ(file.note(), noted.note);
  file.copy_to(copy);
  const SessionFile other(copy);
  other.verify();
  EXPECT_EQ(other.note(), "");
  EXPECT_EQ(testing_files::read_file(copy).find(noted.note), std::string::npos);
  EXPECT_EQ(other.key(), file.key());
  EXPECT_EQ(other.created(), file.created());
  EXPECT_EQ(other.tokens(), kTokens);
  for (const char* section : {"cache", "layers.0", "layers.1"})
    EXPECT_EQ(read_numbers(other, section), read_numbers(file, section));
  expect_error(ErrorCode::kIo, {"there already"}, [&] { file.copy_to(copy); });
  other.copy_to(copy, {.replace = true});
  std::string bytes = testing_files::read_file(path);
  bytes[bytes.size() / 2] ^= 1;
  testing_files::write_file(path, bytes);
  fs::remove(copy);
  expect_error(ErrorCode::kCorrupt, {"a.pith"}, [&] { SessionFile(path).copy_to(copy); });
  EXPECT_FALSE(fs::exists(copy));
}

TEST(SessionFile, WithoutRoomTheOldFileStays) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith";
  write_session_file(path, contents(kTokens, 1));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t most : {rlim_t{0}, rlim_t{100}, rlim_t{5000}, rlim_t{300000}}) {
    const rlimit limit{most, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    expect_error(ErrorCode::kIo, {"a.pith"},
                 [&] { write_session_file(path, contents(kTokens, 2, 50000), {.replace = true}); });
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(entries(folder.path()), 1u);
    SessionFile(path).verify();
    EXPECT_EQ(read_numbers(SessionFile(path), "layers.0")[0], 1u);
  }
  std::signal(SIGXFSZ, SIG_DFL);
}

TEST(SessionFile, AWriterThatIsKilledLeavesOneOfTheTwo) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.pith";
  constexpr size_t kCount = 60000;  // a save takes some milliseconds
  write_session_file(path, contents(kTokens, 0, kCount));
  std::mt19937 random(11);
  uint64_t last = 0;
  size_t replaced = 0;
  for (int i = 0; i < 200; ++i) {
    const pid_t writer = fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      for (uint64_t n = last + 1;; ++n)
        write_session_file(path, contents(kTokens, n, kCount), {.replace = true});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    kill(writer, SIGKILL);
    ASSERT_EQ(waitpid(writer, nullptr, 0), writer);
    const SessionFile file(path);
    file.verify();
    const auto all = read_numbers(file, "layers.0");
    ASSERT_EQ(all.size(), kCount);
    ASSERT_GE(all[0], last);
    ASSERT_EQ(all.back(), all[0] + kCount - 1);
    replaced += all[0] > last;
    last = all[0];
  }
  EXPECT_GT(replaced, 10u) << "nothing was ever written";
  // Files that killed writers left go when they are old; those that a living one writes do not.
  const size_t left = entries(folder.path());
  const auto age = [](const fs::path& file) {
    const utimbuf old{1, 1};
    utime(file.c_str(), &old);
  };
  for (const auto& entry : fs::directory_iterator(folder.path())) age(entry.path());
  OutputFile living(path);
  for (const auto& entry : fs::directory_iterator(folder.path())) age(entry.path());
  write_session_file(path, contents(kTokens, 1, 1), {.replace = true});
  EXPECT_EQ(entries(folder.path()), 2u) << left << " before";
}

}  // namespace
}  // namespace pith
