// Files as they should not be: pipes, devices, folders, links and sparse giants, read and written.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "core/gguf.h"
#include "core/input_file.h"
#include "core/json_file.h"
#include "core/mapped_file.h"
#include "core/output_file.h"
#include "core/safetensors.h"
#include "device_node.h"
#include "model/test_files.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing_files::expect_error;
using testing_files::TemporaryFolder;

std::string text_of(const fs::path& path) { return testing_files::read_file(path); }
void put(const fs::path& path, const std::string& text) { testing_files::write_file(path, text); }
size_t entries(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(InputFile, WhatADownloadLeftInPlaceOfAModelIsNamed) {
  const TemporaryFolder folder;
  const fs::path at = folder.path() / "model";
  const auto refused = [&](const std::string& bytes, const std::string& word) {
    put(at, bytes);
    expect_error(ErrorCode::kCorrupt, {at.string(), word}, [&] { read_json_file(at); });
    expect_error(ErrorCode::kCorrupt, {at.string(), word}, [&] { SafeTensors::open(at); });
    expect_error(ErrorCode::kCorrupt, {at.string(), word}, [&] { Gguf::open(at); });
    EXPECT_EQ(read_file(at, 1000), bytes) << "as a prompt it is any text";
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n";
  refused(pointer, "'git lfs pull'");
  refused("<!DOCTYPE html><html></html>", "a page of HTML");
  refused("\n <HTML>", "a page of HTML");
  put(at, "<htm");
  expect_error(ErrorCode::kCorrupt, {"JSON"}, [&] { read_json_file(at); });
  put(at, "");
  expect_error(ErrorCode::kCorrupt, {"too few"}, [&] { SafeTensors::open(at); });
}

TEST(InputFile, ReadsRegularFilesAndNothingElse) {
  const TemporaryFolder folder;
  const fs::path at = folder.path();
  put(at / "text", "twelve bytes");
  EXPECT_EQ(read_file(at / "text", 12), "twelve bytes");
  expect_error(ErrorCode::kIo, {"text", "12 bytes", "at most 11"},
               [&] { read_file(at / "text", 11); });
  put(at / "empty", "");
  EXPECT_EQ(read_file(at / "empty", 0), "");
  EXPECT_EQ(MappedFile(at / "empty").size(), 0u);
  fs::create_symlink("text", at / "link");
  EXPECT_EQ(read_file(at / "link", 100), "twelve bytes");

  ASSERT_EQ(mkfifo((at / "pipe").c_str(), 0600), 0);
  fs::create_symlink("loop", at / "loop");
  fs::create_symlink("nowhere", at / "dangling");
  const auto refused = [&](const fs::path& path, ErrorCode code, const std::string& word) {
    expect_error(code, {path.filename().string(), word}, [&] { read_file(path, 100); });
    expect_error(code, {path.filename().string(), word}, [&] { MappedFile{path}; });
  };
  refused(at / "pipe", ErrorCode::kIo, "a pipe");  // at once: nobody will ever write to it
  refused("/dev/zero", ErrorCode::kIo, "a device");
  refused(at, ErrorCode::kIo, "a folder");
  refused(at / "loop", ErrorCode::kIo, "symbolic links");
  refused(at / "dangling", ErrorCode::kNotFound, "No such file");
  refused(at / "none", ErrorCode::kNotFound, "No such file");
  EXPECT_TRUE(is_there(at / "loop"));
  EXPECT_TRUE(is_there(at / "dangling"));
  EXPECT_FALSE(is_there(at / "none"));
}

TEST(InputFile, ASparseGiantIsRefusedByItsSize) {
  const TemporaryFolder folder;
  put(folder.path() / "giant", "");
  ASSERT_EQ(truncate((folder.path() / "giant").c_str(), off_t{64} << 30), 0);
  expect_error(ErrorCode::kIo, {"68719476736 bytes"},
               [&] { read_file(folder.path() / "giant", kMostTextBytes); });
  expect_error(ErrorCode::kIo, {"giant"}, [&] { read_json_file(folder.path() / "giant"); });
}

TEST(MappedFile, IsRewrittenInPlaceAndTheFileStays) {
  const TemporaryFolder folder;
  const std::string bytes(100000, 'a');
  put(folder.path() / "f", bytes);
  const MappedFile file(folder.path() / "f"), other(folder.path() / "f");
  // Odd ends, within pages that others read.
  rewrite_mapped(file.bytes().subspan(4095, 50003), [&](std::span<std::byte> part) {
    EXPECT_EQ(part.data(), file.data() + 4095);
    EXPECT_EQ(part.size(), 50003u);
    for (std::byte& b : part) b = std::byte{'b'};
  });
  std::string wanted = bytes;
  std::fill_n(wanted.begin() + 4095, 50003, 'b');
  EXPECT_EQ(std::memcmp(file.data(), wanted.data(), wanted.size()), 0);
  EXPECT_EQ(std::memcmp(other.data(), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(text_of(folder.path() / "f"), bytes);
  rewrite_mapped({}, [](std::span<std::byte>) { ADD_FAILURE() << "nothing to change"; });
}

TEST(OutputFile, AppearsWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  put(path, "before");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  {
    OutputFile file(path);
    file.write("half", 4);
    EXPECT_EQ(text_of(path), "before");
  }
  EXPECT_EQ(text_of(path), "before");
  EXPECT_EQ(entries(folder.path()), 1u) << "nothing half done stays";
  write_file(path, "after");
  EXPECT_EQ(text_of(path), "after");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms{0640});
}

TEST(OutputFile, WritersOfOneNameDoNotShareWhatIsUnfinished) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "out";
  OutputFile one(path), two(path);
  one.write("one", 3);
  two.write("two two", 7);
  one.commit();
  EXPECT_EQ(text_of(path), "one");
  two.commit();
  EXPECT_EQ(text_of(path), "two two");
  EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(OutputFile, NeverReplacesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  const fs::path at = folder.path();
  fs::create_directory(at / "deep");
  put(at / "deep/target", "before");
  fs::create_symlink("deep/target", at / "link");
  fs::create_symlink("deep/new", at / "dangling");
  write_file(at / "link", "after");
  write_file(at / "dangling", "fresh");
  EXPECT_TRUE(fs::is_symlink(at / "link"));
  EXPECT_TRUE(fs::is_symlink(at / "dangling"));
  EXPECT_EQ(text_of(at / "deep/target"), "after");
  EXPECT_EQ(text_of(at / "deep/new"), "fresh");

  ASSERT_EQ(mkfifo((at / "pipe").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = text_of(at / "pipe"); });
  write_file(at / "pipe", "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(at / "pipe"));
  if (const std::string null = test::device_node(at, test::kNull); !null.empty()) {
    write_file(null, "gone");
    EXPECT_TRUE(fs::is_character_file(null));
  }
  if (const std::string full = test::device_node(at, test::kFull); !full.empty())
    expect_error(ErrorCode::kIo, {"/full", "No space"}, [&] { write_file(full, "x"); });

  fs::create_symlink("loop", at / "loop");
  expect_error(ErrorCode::kIo, {"folder"}, [&] { write_file(at / "deep", ""); });
  expect_error(ErrorCode::kIo, {"symbolic links"}, [&] { write_file(at / "loop", ""); });
  expect_error(ErrorCode::kIo, {"No such file"}, [&] { write_file(at / "none/x", ""); });
  expect_error(ErrorCode::kInvalidArgument, {"empty"}, [&] { write_file("", ""); });
}

TEST(OutputFile, AnInputIsNoOutput) {
  const TemporaryFolder folder;
  const fs::path at = folder.path();
  put(at / "in", "kept");
  fs::create_symlink("in", at / "link");
  fs::create_hard_link(at / "in", at / "hard");
  for (const char* name : {"in", "link", "hard"})
    expect_error(ErrorCode::kInvalidArgument, {name, "output"}, [&] {
      check_output(at / name, {"-", "", at / "in"});
    });
  check_output(at / "out", {at / "in"});
  EXPECT_FALSE(fs::exists(at / "out"));
}

TEST(JsonFile, DeepNestingIsRefusedWhileItIsText) {
  const std::string deep(80000, '['), closed = deep + std::string(80000, ']');
  for (const std::string& text : {deep, closed, "{\"a\":" + closed + "}"}) {
    expect_error(ErrorCode::kCorrupt, {"here", "nested"}, [&] { parse_json(text, "here"); });
    expect_error(ErrorCode::kCorrupt, {"here", "nested"}, [&] { parse_json_object(text, "here"); });
  }
  // Brackets in strings, behind an escaped quote too, are letters.
  EXPECT_EQ(parse_json("[\"\\\"" + deep + "\"]", "here").size(), 1u);
  const std::string hundred(100, '[');
  EXPECT_EQ(parse_json(hundred + std::string(100, ']'), "here").size(), 1u);
}

TEST(SafeTensorsFiles, AreWrittenThroughLinks) {
  const TemporaryFolder folder;
  fs::create_symlink("real", folder.path() / "link");
  const std::vector<float> x{1, 2};
  write_safetensors(folder.path() / "link", {{{"x", TensorType::kF32, {2}}, x.data()}});
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(SafeTensors::open(folder.path() / "real").at("x").count(), 2u);
}

}  // namespace
}  // namespace pith
