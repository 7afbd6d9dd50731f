#include "core/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "model/test_files.h"
#include "pith/error.h"

namespace pith {
namespace {

using testing_files::expect_error;
using testing_files::raw_safetensors;
using testing_files::TemporaryFolder;
using testing_files::write_file;

TEST(SafeTensors, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<float> floats = {1, -2, 3.5f, 0, 1e30f, -0.0f};
  const std::vector<int64_t> longs = {1, -5, int64_t{1} << 40};
  const uint16_t half = 0x3C00;
  write_safetensors(path,
                    {{{"h", TensorType::kF16, {1}}, &half},
                     {{"floats", TensorType::kF32, {2, 3}}, floats.data()},
                     {{"none", TensorType::kF32, {0, 4}}, nullptr},
                     {{"scalar", TensorType::kF32, {}}, floats.data() + 2},
                     {{"longs", TensorType::kI64, {3}}, longs.data()}},
                    {{"policy", "exact \"quoted\""}});
  const SafeTensors file = SafeTensors::open(path);
  EXPECT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.metadata().at("policy"), "exact \"quoted\"");
  const Tensor& f = file.at("floats");
  EXPECT_EQ(f.shape, (std::vector<size_t>{2, 3}));
  EXPECT_EQ(f.shape_text(), "[2, 3]");
  EXPECT_EQ(f.dtype(), DType::kF32);
  EXPECT_EQ(std::memcmp(f.data, floats.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.at("longs").data, longs.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.at("h").data, &half, 2), 0);
  EXPECT_EQ(file.at("none").count(), 0u);
  EXPECT_EQ(file.at("scalar").count(), 1u);
  EXPECT_TRUE(file.at("scalar").shape.empty());
  for (const auto& [name, t] : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % size_of(t.type), 0u) << name;
  }
  expect_error(ErrorCode::kUnsupported, {"longs", "I64"}, [&] { file.at("longs").dtype(); });
  expect_error(ErrorCode::kNotFound, {"x.safetensors", "'absent'"}, [&] { file.at("absent"); });
}

TEST(SafeTensors, AnUnfinishedFileNeverAppears) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const float number = 1;
  {
    SafeTensorsWriter writer(path, {{"a", TensorType::kF32, {2}}});
    writer.append(&number, 4);
    EXPECT_THROW(writer.finish(), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  {
    SafeTensorsWriter writer(path, {{"a", TensorType::kF32, {2}}});
    writer.append(&number, 4);
    writer.append(&number, 4);
    EXPECT_THROW(writer.append(&number, 4), Error);
    writer.finish();
  }
  EXPECT_EQ(SafeTensors::open(path).at("a").count(), 2u);
  expect_error(ErrorCode::kIo, {"cannot write"},
               [&] { SafeTensorsWriter(folder.path() / "no" / "x.safetensors", {}); });
  expect_error(ErrorCode::kInvalidArgument, {"'a'"}, [&] {
    SafeTensorsWriter(path, {{"a", TensorType::kF32, {1}}, {"a", TensorType::kF32, {1}}});
  });
}

TEST(SafeTensors, DataAtAnyByteAreHandedOutAligned) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<float> numbers = {1, 2, 3};
  for (size_t pad = 0; pad < 8; ++pad) {
    std::string data(12, '\0');
    std::memcpy(data.data(), numbers.data(), 12);
    write_file(path, raw_safetensors(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})" +
                                         std::string(pad, ' '),
                                     data));
    const SafeTensors file = SafeTensors::open(path);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.at("a").data) % 4, 0u);
    EXPECT_EQ(std::memcmp(file.at("a").data, numbers.data(), 12), 0);
  }
}

TEST(SafeTensors, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<float> numbers(10, 1.0f);
  write_safetensors(path, {{{"a", TensorType::kF32, {10}}, numbers.data()}});
  const std::string whole = testing_files::read_file(path);
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(path, whole.substr(0, size));
    expect_error(ErrorCode::kCorrupt, {"x.safetensors"}, [&] { SafeTensors::open(path); });
  }
  write_file(path, whole + "x");
  expect_error(ErrorCode::kCorrupt, {"41 bytes", "40"}, [&] { SafeTensors::open(path); });
}

TEST(SafeTensors, EveryDamagedHeaderIsRefusedByName) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  struct Case {
    ErrorCode code;
    const char* header;
    std::vector<std::string> words;
  };
  const auto corrupt = ErrorCode::kCorrupt;
  const std::vector<Case> cases = {
      {corrupt, "", {"JSON"}},
      {corrupt, "{", {"JSON"}},
      {corrupt, "[]", {"object"}},
      {corrupt, "\xff\xfe", {"JSON"}},
      {corrupt, R"({"a":3})", {"'a'"}},
      {corrupt, R"({"a":{"shape":[2],"data_offsets":[0,8]}})", {"'a'", "dtype"}},
      {corrupt, R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", {"'a'", "shape"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[2]}})", {"'a'", "data_offsets"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", {"'a'"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", {"'a'", "-2"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}})", {"'a'", "shape"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", {"'a'", "2.5"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", {"'a'", "[3]"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", {"'a'"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", {"'a'", "16"}},
      // 2^62 * 8 bytes overflows to 0.
      {corrupt,
       R"({"a":{"dtype":"F64","shape":[4611686018427387904,8],"data_offsets":[0,0]},
           "b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       {"'a'"}},
      {corrupt,
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
           "b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       {"overlap"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", {"'a'", "hole"}},
      {corrupt, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", {"8 bytes"}},
      {corrupt,
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
           "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       {"'a'", "twice"}},
      {corrupt,
       R"({"__metadata__":{"n":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       {"'n'"}},
      {ErrorCode::kUnsupported,
       R"({"a":{"dtype":"F4","shape":[16],"data_offsets":[0,8]}})",
       {"'a'", "'F4'", "BF16"}},
  };
  for (const Case& c : cases) {
    write_file(path, raw_safetensors(c.header, std::string(8, '\0')));
    expect_error(c.code, c.words, [&] { SafeTensors::open(path); });
  }
  std::string huge = raw_safetensors("{}", "");
  std::memset(huge.data(), 0xFF, 8);
  write_file(path, huge);
  expect_error(corrupt, {"header"}, [&] { SafeTensors::open(path); });
}

TEST(SafeTensors, DeepNestingIsRefusedWithoutACrash) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  write_file(path, raw_safetensors(R"({"a":)" + std::string(1000000, '['), ""));
  expect_error(ErrorCode::kCorrupt, {"JSON"}, [&] { SafeTensors::open(path); });
}

TEST(SafeTensors, MissingFilesAndFoldersAreNamed) {
  const TemporaryFolder folder;
  expect_error(ErrorCode::kNotFound, {"none.safetensors"},
               [&] { SafeTensors::open(folder.path() / "none.safetensors"); });
  expect_error(ErrorCode::kIo, {"a folder"}, [&] { SafeTensors::open(folder.path()); });
  expect_error(ErrorCode::kNotFound, {"model.safetensors", "converted"},
               [&] { SafeTensors::open_folder(folder.path()); });
}

TEST(SafeTensors, ShardsAreCheckedAgainstTheirIndex) {
  const TemporaryFolder folder;
  const float number = 3;
  const auto index = folder.path() / "model.safetensors.index.json";
  write_safetensors(folder.path() / "one.safetensors", {{{"a", TensorType::kF32, {1}}, &number}});
  write_safetensors(folder.path() / "two.safetensors", {{{"b", TensorType::kF32, {1}}, &number}});
  const auto open = [&] { return SafeTensors::open_folder(folder.path()); };

  write_file(index, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_EQ(open().tensors().size(), 2u);
  write_file(index, R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
  expect_error(ErrorCode::kCorrupt, {"'b'", "one.safetensors"}, open);
  write_file(index, R"({"weight_map":{"a":"one.safetensors","b":"gone.safetensors"}})");
  expect_error(ErrorCode::kNotFound, {"lacks 1 of the 2 files", "gone.safetensors"}, open);
  write_file(index, R"({"weight_map":{"a":"../one.safetensors"}})");
  expect_error(ErrorCode::kCorrupt, {"../one.safetensors"}, open);
  write_file(index, R"({"weight_map":{"a":3}})");
  expect_error(ErrorCode::kCorrupt, {"'a'"}, open);
  write_file(index, R"({"weight_map":{}})");
  expect_error(ErrorCode::kCorrupt, {"weight_map"}, open);
  write_file(index, R"({"weight_map":)");
  expect_error(ErrorCode::kCorrupt, {"index.json", "JSON"}, open);
  write_safetensors(folder.path() / "two.safetensors", {{{"a", TensorType::kF32, {1}}, &number}});
  write_file(index, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  expect_error(ErrorCode::kCorrupt, {"'a'"}, open);
}

}  // namespace
}  // namespace pith
