#include "tools/eval/records.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "pith/error.h"
#include "pith/presets.h"

namespace pith {
namespace {

class Records : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pith_records_XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ / "r.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_, path_;
};

TEST_F(Records, GoOnWhereTheyStopped) {
  {
    RecordFile file(path_);
    file.add("a", {{"value", 1}});
    file.add("b", {{"value", 2}});
  }
  std::ofstream(path_, std::ios::app) << R"({"key":"c","val)";  // killed in the middle
  RecordFile again(path_);
  EXPECT_EQ(again.found(), 2u);
  EXPECT_EQ((*again.find("b"))["value"], 2);
  EXPECT_EQ(again.find("c"), nullptr);
  again.add("c", {{"value", 3}});
  EXPECT_EQ(RecordFile(path_).found(), 3u);
}

TEST_F(Records, OtherFilesAreRefusedUnharmed) {
  std::ofstream(path_) << "dear diary\n";
  EXPECT_THROW(RecordFile{path_}, Error);
  EXPECT_EQ(std::filesystem::file_size(path_), 11u);
  EXPECT_THROW(RecordFile{"/nowhere/r.jsonl"}, Error);
}

TEST_F(Records, LedgersComeBack) {
  Ledger l;
  l.payload = 1, l.metadata = 2, l.shared = 3, l.tokens = 4, l.rows_seen = 5, l.rows_kept = 6;
  l.channels_seen = 16, l.channels_kept = 8;
  const Ledger back = ledger_from(to_record(l));
  EXPECT_EQ(back.cache_bytes(), 6u);
  EXPECT_EQ(back.rows_kept, 6u);
  EXPECT_EQ(back.effective_bits(), 3);
}

TEST(Fingerprint, IsFnv1a) {
  EXPECT_EQ(fingerprint(""), "cbf29ce484222325");
  EXPECT_EQ(fingerprint("a"), "af63dc4c8601ec8c");  // published test vector
}

TEST_F(Records, FingerprintsOfModelsAreOfFoldersAndOfFiles) {
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  };
  write("config.json", "{}");
  write("a.safetensors", "weights");
  const std::string folder = model_fingerprint(folder_);
  const std::string file = model_fingerprint(write("m.gguf", "GGUF one"));
  EXPECT_EQ(model_fingerprint(folder_), folder) << "a GGUF file is no part of a folder's model";
  EXPECT_EQ(model_fingerprint(folder_ / "m.gguf"), file);
  EXPECT_EQ(model_fingerprint(write("of another name.gguf", "GGUF one")), file);
  EXPECT_NE(model_fingerprint(write("m.gguf", "GGUF two")), file);
  EXPECT_THROW(model_fingerprint(folder_ / "none.gguf"), Error);
}

}  // namespace
}  // namespace pith
