#include "core/gguf.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "model/test_files.h"
#include "pith/error.h"
#include "tools/quantize/gguf_writer.h"

namespace pith {
namespace {

using testing_files::expect_error;
using testing_files::TemporaryFolder;
using testing_files::write_file;

Gguf parse(const std::string& bytes) {
  return Gguf::parse(std::as_bytes(std::span(bytes)), "x.gguf");
}

/// A number in the file's byte order.
template <class T>
std::string raw(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}
std::string raw_string(std::string_view text) {
  return raw<uint64_t>(text.size()) + std::string(text);
}
std::string head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  return "GGUF" + raw(version) + raw(tensors) + raw(keys);
}
std::string key(std::string_view name, uint32_t type, const std::string& value) {
  return raw_string(name) + raw(type) + value;
}
/// A tensor's description, the contiguous dimension first.
std::string info(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type = 0,
                 uint64_t offset = 0) {
  std::string out = raw_string(name) + raw(static_cast<uint32_t>(dimensions.size()));
  for (uint64_t n : dimensions) out += raw(n);
  return out + raw(type) + raw(offset);
}
std::string padded(std::string bytes, size_t alignment = 32) {
  bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
  return bytes;
}

/// A file with keys of every type and three tensors: about 1 KB.
std::string small_file() {
  GgufKeys keys;
  keys.text("general.architecture", "llama");
  keys.u32("llama.block_count", 2);
  keys.f32("llama.rope.freq_base", 10000);
  keys.flag("tokenizer.ggml.add_bos_token", true);
  keys.texts("tokenizer.ggml.tokens", {"a", "", "\xC4\xA0the"});
  keys.f32s("tokenizer.ggml.scores", {0, -1, -2.5f});
  keys.i32s("tokenizer.ggml.token_type", {1, 3, 6});
  const std::vector<GgufTensorSpec> specs = {
      {"norm.weight", 0, {5}}, {"blk.0.q.weight", 8, {2, 32}}, {"tail", 30, {3}}};
  std::string out = gguf_head(keys, specs);
  for (const GgufTensorSpec& spec : specs) {
    out += padded(std::string(gguf_tensor_bytes(spec), '\x11'));
  }
  return out;
}

TEST(Gguf, WhatIsWrittenIsRead) {
  const std::string bytes = small_file();
  const Gguf file = parse(bytes);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.block_count", 1, 100), 2);
  EXPECT_EQ(file.number("llama.rope.freq_base"), 10000);
  EXPECT_EQ(file.flag("tokenizer.ggml.add_bos_token"), true);
  EXPECT_EQ(file.texts("tokenizer.ggml.tokens"),
            (std::vector<std::string_view>{"a", "", "\xC4\xA0the"}));
  EXPECT_EQ(file.numbers("tokenizer.ggml.scores"), (std::vector<float>{0, -1, -2.5f}));
  EXPECT_EQ(file.integers("tokenizer.ggml.token_type", 1, 6), (std::vector<int64_t>{1, 3, 6}));
  EXPECT_FALSE(file.text("absent"));
  EXPECT_EQ(file.describe("tokenizer.ggml.tokens"), "string[3]");
  ASSERT_EQ(file.tensors().size(), 3u);
  const GgufTensor* q = file.find("blk.0.q.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_STREQ(q->type->name, "Q8_0");
  EXPECT_EQ(q->shape_text(), "[2, 32]");
  EXPECT_EQ(q->bytes, 68u);
  EXPECT_EQ(reinterpret_cast<const char*>(q->data) - bytes.data(),
            static_cast<ptrdiff_t>(bytes.size() - 32 - 96));
}

TEST(Gguf, EveryTypeOfValueIsReadByItsRange) {
  const std::string array = raw<uint32_t>(12) + raw<uint64_t>(2) + raw(1.5) + raw(2.0);
  const std::string bytes =
      head(0, 12, 2) + key("a", 0, raw<uint8_t>(200)) + key("b", 1, raw<int8_t>(-3)) +
      key("c", 2, raw<uint16_t>(65535)) + key("d", 3, raw<int16_t>(-300)) +
      key("e", 4, raw<uint32_t>(4000000000u)) + key("f", 5, raw<int32_t>(-7)) +
      key("g", 6, raw(0.5f)) + key("h", 7, raw<uint8_t>(1)) + key("i", 10, raw<uint64_t>(9)) +
      key("j", 11, raw<int64_t>(-9)) + key("k", 12, raw(0.25)) + key("l", 9, array);
  const Gguf file = parse(bytes);
  EXPECT_EQ(file.integer("a", 0, 255), 200);
  EXPECT_EQ(file.integer("b", -5, 5), -3);
  EXPECT_EQ(file.integer("c", 0, 70000), 65535);
  EXPECT_EQ(file.integer("d", -300, 0), -300);
  EXPECT_EQ(file.integer("e", 0, int64_t{1} << 40), 4000000000);
  EXPECT_EQ(file.integer("f", -7, -7), -7);
  EXPECT_EQ(file.number("g"), 0.5);
  EXPECT_EQ(file.flag("h"), true);
  EXPECT_EQ(file.integer("i", 0, 9), 9);
  EXPECT_EQ(file.integer("j", -9, 9), -9);
  EXPECT_EQ(file.number("k"), 0.25);
  EXPECT_EQ(file.numbers("l"), (std::vector<float>{1.5f, 2}));
  expect_error(ErrorCode::kCorrupt, {"'e' is u32 4000000000; expected a whole number from 0 to 9"},
               [&] { file.integer("e", 0, 9); });
  expect_error(ErrorCode::kCorrupt, {"'g' is f32 0.5; expected a whole number"},
               [&] { file.integer("g", 0, 9); });
  expect_error(ErrorCode::kCorrupt, {"'l' is f64[2]"}, [&] { file.number("l"); });
  expect_error(ErrorCode::kCorrupt, {"'a' is u8 200; expected an array of strings"},
               [&] { file.texts("a"); });
  expect_error(ErrorCode::kCorrupt, {"'l' is f64[2]; expected an array of strings"},
               [&] { file.texts("l"); });
}

TEST(Gguf, AlignmentsAndOrdersOfOtherWriters) {
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    const std::string header =
        padded(head(2, 1) + key("general.alignment", 4, raw(alignment)) +
                   info("second", {2}, 0, alignment) + info("first", {1, 1, 2}, 0, 0),
               alignment);
    const std::string bytes =
        header + padded(raw(1.0f) + raw(2.0f), alignment) + raw(3.0f) + raw(4.0f);
    const Gguf file = parse(bytes);
    float at = 0;
    std::memcpy(&at, file.find("second")->data, 4);
    EXPECT_EQ(at, 3);
    std::memcpy(&at, file.find("first")->data, 4);
    EXPECT_EQ(at, 1);
    EXPECT_EQ(file.find("first")->shape, (std::vector<size_t>{2, 1, 1}));
  }
}

std::string part(uint16_t number, uint16_t count, std::string_view tensor, int32_t total = 2) {
  GgufKeys keys;
  if (number == 0) keys.text("general.architecture", "llama");
  keys.u16("split.no", number);
  keys.u16("split.count", count);
  keys.i32("split.tensors.count", total);
  if (tensor.empty()) return gguf_head(keys, {});
  return gguf_head(keys, {{std::string(tensor), 0, {1}}}) + raw(static_cast<float>(number));
}

TEST(Gguf, PartsOfASplitFileLieBesideTheFirst) {
  const TemporaryFolder folder;
  const auto path = [&](int n) {
    return folder.path() / ("m-0000" + std::to_string(n) + "-of-00003.gguf");
  };
  write_file(path(1), part(0, 3, ""));
  write_file(path(2), part(1, 3, "a"));
  expect_error(ErrorCode::kNotFound, {"m-00003-of-00003.gguf"}, [&] { Gguf::open(path(1)); });
  write_file(path(3), part(2, 3, "b"));
  const Gguf file = Gguf::open(path(1));
  ASSERT_EQ(file.tensors().size(), 2u);
  float at = 0;
  std::memcpy(&at, file.find("b")->data, 4);
  EXPECT_EQ(at, 2);
  EXPECT_EQ(file.text("general.architecture"), "llama");

  expect_error(ErrorCode::kUnsupported, {"is part 2 of 3; give the first, m-00001-of-00003.gguf"},
               [&] { Gguf::open(path(2)); });
  write_file(path(3), part(2, 3, "a"));
  expect_error(ErrorCode::kCorrupt, {"tensor 'a' is in"}, [&] { Gguf::open(path(1)); });
  write_file(path(3), part(1, 3, "b"));
  expect_error(ErrorCode::kCorrupt, {"not that of part 3 of 3"}, [&] { Gguf::open(path(1)); });
  write_file(path(3), part(2, 3, "b"));
  write_file(path(1), part(0, 3, "", 5));
  expect_error(ErrorCode::kCorrupt, {"all parts together hold 2 tensors"},
               [&] { Gguf::open(path(1)); });
  write_file(folder.path() / "renamed.gguf", part(0, 3, ""));
  expect_error(ErrorCode::kCorrupt, {"would end in '-00001-of-00003.gguf'"},
               [&] { Gguf::open(folder.path() / "renamed.gguf"); });
}

void expect_refused(ErrorCode code, const std::string& part, const std::string& bytes) {
  expect_error(code, {part}, [&] { parse(bytes); });
}

TEST(Gguf, HostileHeadersAreRefused) {
  const auto corrupt = [](const std::string& says, const std::string& bytes) {
    expect_refused(ErrorCode::kCorrupt, says, bytes);
  };
  corrupt("the magic", "");
  corrupt("does not begin with GGUF", "GGML" + std::string(100, '\0'));
  expect_refused(ErrorCode::kUnsupported, "version 1", head(0, 0, 1));
  expect_refused(ErrorCode::kUnsupported, "version 4", head(0, 0, 4));
  expect_refused(ErrorCode::kUnsupported, "big-endian", head(0, 0, 3u << 24));
  const uint64_t huge = std::numeric_limits<uint64_t>::max(), half = uint64_t{1} << 63;
  for (const uint64_t n : {huge, half, uint64_t{1000}}) {
    corrupt("claims", head(n, 0) + std::string(64, '\0'));
    corrupt("claims", head(0, n) + std::string(64, '\0'));
  }
  corrupt("a key", head(0, 1) + raw(huge) + std::string(64, 'x'));
  corrupt("a key", head(0, 1) + key(std::string(65536, 'k'), 0, "x"));
  corrupt("a key", head(0, 1) + key(std::string("a\0b", 3), 0, "xxxxxxxxx"));
  corrupt("a key", head(0, 1) + key("", 0, "xxxxxxxxx"));
  corrupt("type 13", head(0, 1) + key("k", 13, "xxxxxxxxx"));
  corrupt("type 4294967295", head(0, 1) + key("k", huge & 0xFFFFFFFF, "xxxxxxxxx"));
  corrupt("type 99", head(0, 1) + key("k", 9, raw<uint32_t>(99) + raw<uint64_t>(1)));
  corrupt("array of arrays", head(0, 1) + key("k", 9, raw<uint32_t>(9) + raw<uint64_t>(1)));
  for (const uint32_t type : {0u, 6u, 8u, 10u}) {
    for (const uint64_t n : {huge, half, half / 4, uint64_t{1000}}) {
      corrupt("elements", head(0, 1) + key("k", 9, raw(type) + raw(n) + std::string(30, '\1')));
    }
  }
  corrupt("a string", head(0, 1) + key("k", 8, raw(huge - 7) + "text"));
  corrupt("neither 0 nor 1", head(0, 1) + key("k", 7, "\2"));
  corrupt("occurs twice", head(0, 2) + key("k", 0, "\1") + key("k", 0, "\1"));
  corrupt("general.alignment", head(0, 1) + key("general.alignment", 8, raw_string("32")));
  for (const uint32_t n : {0u, 4u, 48u, 1u << 21, 1u << 31}) {
    corrupt("general.alignment", head(0, 1) + key("general.alignment", 4, raw(n)));
  }
}

TEST(Gguf, HostileTensorsAreRefused) {
  const auto corrupt = [](const std::string& says, const std::string& infos, uint64_t count = 1) {
    expect_refused(ErrorCode::kCorrupt, says,
                   padded(head(count, 0) + infos) + std::string(256, '\1'));
  };
  const uint64_t high = uint64_t{1} << 40;
  corrupt("5 dimensions", info("t", {1, 1, 1, 1, 1}));
  corrupt("0 dimensions", info("t", {}) + std::string(8, '\0'));
  corrupt("dimension of 0", info("t", {4, 0}));
  corrupt("a dimension of", info("t", {high + 1}));
  corrupt("has no size", info("t", {high, high, high, high}));
  // 2^40 * 2^24 numbers of 4 bytes wrap to nothing.
  corrupt("has no size", info("t", {high, uint64_t{1} << 24}));
  corrupt("truncated", info("t", {high}));
  corrupt("truncated", info("t", {65}));
  corrupt("no whole Q4_K blocks", info("t", {128}, 12));
  corrupt("a tensor's name", info(std::string(64, 'n'), {1}));
  corrupt("a tensor's name", info("", {1}));
  corrupt("no multiple of 32", info("t", {1}, 0, 4));
  corrupt("truncated", info("t", {1}, 0, 256));
  corrupt("truncated", info("t", {1}, 0, ~uint64_t{31}));
  corrupt("overlap", info("a", {9}) + info("b", {1}, 0, 32), 2);
  corrupt("overlap", info("a", {1}) + info("b", {1}), 2);
  corrupt("is in x.gguf too", info("a", {1}) + info("a", {1}, 0, 32), 2);
  for (const uint32_t type : {4u, 5u, 31u, 38u, 137u, 0xFFFFFFFFu}) {
    expect_refused(ErrorCode::kUnsupported, "is of type " + std::to_string(type),
                   padded(head(1, 0) + info("t", {256}, type)) + std::string(512, '\1'));
  }
  expect_refused(ErrorCode::kCorrupt, "before its tensors begin", head(1, 0) + info("t", {1}));
}

/// Whatever the bytes are: an Error or a file whose every part can be touched.
void expect_harmless(const std::string& bytes) {
  try {
    const Gguf file = parse(bytes);
    for (const auto& [name, value] : file.keys()) EXPECT_FALSE(file.describe(name).empty());
    unsigned sum = 0;
    for (const auto& [name, t] : file.tensors()) {
      for (size_t i = 0; i < t.bytes; ++i) sum += static_cast<unsigned>(t.data[i]);
    }
    EXPECT_LE(sum, 255 * bytes.size());
  } catch (const Error&) {
  }
}

TEST(Gguf, TruncationAtAnyByteIsHarmless) {
  const std::string whole = small_file();
  const size_t used = whole.size() - 32 + 6;  // the last tensor needs no padding
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string cut(whole.data(), n);
    expect_harmless(cut);
    if (n < used) {
      EXPECT_THROW(parse(cut), Error) << n;
    }
  }
}

TEST(Gguf, AnyFlippedByteIsHarmless) {
  const std::string whole = small_file();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xFF, 0x20}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      expect_harmless(bytes);
    }
  }
}

}  // namespace
}  // namespace pith
