#include "pith/tokenizer.h"
#include "paths.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "core/utf8.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kRepo = repo_dir();
const fs::path kData = kRepo / "tests" / "data" / "tokenizers";

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// A model folder in the temporary directory, gone with the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "pith-tokenizer-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder& write(const char* name, const std::string& bytes) {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return *this;
  }
  Folder& write(const char* name, const json& root) { return write(name, root.dump()); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Loads tokenizer.json with this content.
std::unique_ptr<Tokenizer> load(const json& root) {
  return load_tokenizer(Folder().write("tokenizer.json", root).path());
}

json gpt2_json() { return json::parse(slurp(kData / "gpt2" / "tokenizer.json")); }

void expect_error(ErrorCode code, const std::string& words, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error; expected: " << words;
  } catch (const Error& e) {
    EXPECT_EQ(to_string(e.code()), std::string(to_string(code))) << e.what();
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

std::string random_bytes(std::mt19937& random, size_t size) {
  std::string out;
  while (out.size() < size) out.push_back(static_cast<char>(random() & 0xFF));
  return out;
}

/// Random characters, many of them white space and letters, all of valid UTF-8.
std::string random_text(std::mt19937& random, size_t characters) {
  constexpr char32_t kCommon[] = {' ', ' ', '\n', '\t', 'a', 'e', 't', 'I', '\'', 's', '7', 0xE9};
  std::string out;
  for (size_t i = 0; i < characters; ++i) {
    char32_t c = kCommon[random() % std::size(kCommon)];
    if (random() % 3 == 0) c = random() % (random() % 2 == 0 ? 0x3000 : 0x110000);
    append_utf8(out, c >= 0xD800 && c < 0xE000 ? U'x' : c);
  }
  return out;
}

TEST(Utf8, ReplacesAsTheUnicodeStandardDoes) {
  // Table 3-8 to 3-11 of the standard, and what Python gives.
  const std::string r(kReplacement);
  EXPECT_EQ(to_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(to_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(to_utf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Utf8Stream, HoldsBackWhatIsNotComplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z\xC3"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.flush(), kReplacement);
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("x"), std::string(kReplacement) + "x");
}

TEST(Utf8Stream, GivesTheSameTextHoweverItIsCut) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::string bytes =
        round % 2 == 0 ? random_bytes(random, random() % 40) : random_text(random, random() % 12);
    Utf8Stream stream;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = std::min<size_t>(1 + random() % 5, bytes.size() - at);
      out += stream.push(std::string_view(bytes).substr(at, n));
      EXPECT_TRUE(is_utf8(out));
      at += n;
    }
    EXPECT_EQ(out + stream.flush(), to_utf8(bytes));
  }
}

TEST(Tokenizer, GivesBackWhatItEncoded) {
  std::mt19937 random(2);
  for (const char* name : {"llama3", "gpt2", "demo", "llama2", "llama2_new", "llama2_json"}) {
    const bool demo = std::string_view(name) == "demo";
    const auto tokenizer = load_tokenizer(demo ? kRepo / "models" / "demo" : kData / name);
    for (int round = 0; round < 300; ++round) {
      const std::string text = random_text(random, random() % 60);
      for (const bool parse_special : {true, false}) {
        const auto ids = tokenizer->encode(text, parse_special);
        ASSERT_EQ(tokenizer->decode(ids), text) << name;
        std::string joined;
        for (const int32_t id : ids) joined += tokenizer->piece(id);
        const bool spaced = std::string_view(name).starts_with("llama2") && !text.empty();
        ASSERT_EQ(joined, spaced ? " " + text : text) << name;
      }
    }
  }
}

TEST(Tokenizer, NormalizesForQwenOnly) {
  const auto qwen = load_tokenizer(kData / "qwen2"), llama = load_tokenizer(kData / "llama3");
  EXPECT_EQ(qwen->decode(qwen->encode("e\xCC\x81")), "\xC3\xA9");
  EXPECT_EQ(llama->decode(llama->encode("e\xCC\x81")), "e\xCC\x81");
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const auto llama3 = load_tokenizer(kData / "llama3");
  EXPECT_EQ(llama3->bos(), llama3->find("<|begin_of_text|>"));
  EXPECT_EQ(llama3->eos(), llama3->find("<|eot_id|>"));
  EXPECT_TRUE(llama3->add_bos());
  EXPECT_TRUE(llama3->is_special(llama3->bos()));
  EXPECT_FALSE(llama3->find("<|no such token|>").has_value());
  const auto ids = llama3->encode("a<|eot_id|>b");
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(llama3->decode(ids), "a<|eot_id|>b");
  EXPECT_EQ(llama3->decode(ids, true), "ab");
  EXPECT_GT(llama3->encode("a<|eot_id|>b", false).size(), 3u);

  const auto qwen = load_tokenizer(kData / "qwen2");
  EXPECT_EQ(qwen->bos(), -1);
  EXPECT_FALSE(qwen->add_bos());
  EXPECT_EQ(qwen->eos(), qwen->find("<|im_end|>"));
  EXPECT_EQ(qwen->decode(qwen->encode("<think>a<|im_end|>"), true), "<think>a");

  const auto llama2 = load_tokenizer(kData / "llama2");
  EXPECT_EQ(llama2->bos(), 1);
  EXPECT_EQ(llama2->eos(), 2);
  EXPECT_TRUE(llama2->add_bos());
  EXPECT_EQ(llama2->find("<0x0A>"), 3 + 10);
  EXPECT_EQ(llama2->piece(3 + 0xC3), "\xC3");
  EXPECT_EQ(load_tokenizer(kData / "llama2_new")->vocab_size(), llama2->vocab_size() + 1);

  const auto demo = load_tokenizer(kRepo / "models" / "demo");
  EXPECT_EQ(demo->bos(), 0);
  EXPECT_EQ(demo->eos(), 1);
  EXPECT_EQ(demo->vocab_size(), 8192);
}

TEST(Tokenizer, ReadsTheFilesBesideIt) {
  Folder folder;
  folder.write("tokenizer.json", slurp(kData / "gpt2" / "tokenizer.json"));
  const int32_t end = *load_tokenizer(folder.path())->find("<|endoftext|>");
  EXPECT_EQ(load_tokenizer(folder.path())->eos(), -1);
  folder.write("config.json", json{{"bos_token_id", 5}, {"eos_token_id", {7, 8, 99999999}}});
  folder.write("generation_config.json", json{{"eos_token_id", 9}});
  EXPECT_EQ(load_tokenizer(folder.path())->bos(), 5);
  EXPECT_EQ(load_tokenizer(folder.path())->eos_ids(), (std::vector<int32_t>{9, 7, 8}));
  folder.write("special_tokens_map.json", json{{"eos_token", "<|endoftext|>"}});
  EXPECT_EQ(load_tokenizer(folder.path())->eos_ids(), (std::vector<int32_t>{end, 9, 7, 8}));
  folder.write("tokenizer_config.json",
               json{{"bos_token", {{"content", "<|endoftext|>"}}}, {"add_bos_token", true}});
  EXPECT_EQ(load_tokenizer(folder.path())->bos(), end);
  EXPECT_TRUE(load_tokenizer(folder.path())->add_bos());
  folder.write("tokenizer_config.json", json{{"bos_token", nullptr}, {"add_bos_token", true}});
  expect_error(ErrorCode::kCorrupt, "has none", [&] { load_tokenizer(folder.path()); });
  folder.write("tokenizer_config.json", json{{"eos_token", "<nope>"}});
  expect_error(ErrorCode::kCorrupt, "<nope>", [&] { load_tokenizer(folder.path()); });
  folder.write("tokenizer_config.json", std::string("{\"eos_token\": "));
  expect_error(ErrorCode::kCorrupt, "tokenizer_config.json",
               [&] { load_tokenizer(folder.path()); });
}

TEST(Tokenizer, RefusesIdsItDoesNotHave) {
  for (const char* name : {"gpt2", "llama2"}) {
    const auto tokenizer = load_tokenizer(kData / name);
    for (const int32_t id : {-1, tokenizer->vocab_size(), INT32_MAX, INT32_MIN}) {
      expect_error(ErrorCode::kInvalidArgument, "outside", [&] { tokenizer->piece(id); });
      expect_error(ErrorCode::kInvalidArgument, "outside", [&] {
        tokenizer->decode(std::vector<int32_t>{0, id});
      });
    }
  }
}

TEST(TokenizerErrors, NoTokenizer) {
  expect_error(ErrorCode::kNotFound, "tokenizer.json", [] { load_tokenizer(Folder().path()); });
  expect_error(ErrorCode::kNotFound, "tokenizer.model", [] { load_tokenizer("/no/such/folder"); });
}

TEST(TokenizerErrors, TruncatedFiles) {
  for (const char* name : {"gpt2/tokenizer.json", "llama2_json/tokenizer.json",
                           "llama2/tokenizer.model", "unigram/tokenizer.model"}) {
    const std::string whole = slurp(kData / name);
    Folder folder;
    const std::string file = fs::path(name).filename().string();
    const size_t last = whole.find_last_not_of('\n');  // JSON is whole without its last newline
    for (size_t i = 0; i < 60; ++i) {
      const size_t size = i < 20 ? i : i < 40 ? last - (i - 20) : last * (i - 39) / 21;
      folder.write(file.c_str(), whole.substr(0, size));
      expect_error(ErrorCode::kCorrupt, file, [&] { load_tokenizer(folder.path()); });
    }
  }
}

// SentencePiece's table of pieces takes a NUL for the end of one, and throws for an empty piece.
TEST(TokenizerErrors, PiecesThatBeginWithANul) {
  const std::string piece = "\n\x05\xe2\x96\x81xa";  // field 1 of 5 bytes
  std::string model = slurp(kData / "unigram" / "tokenizer.model");
  const size_t at = model.find(piece);
  ASSERT_NE(at, std::string::npos);
  model[at + 2] = '\0';
  Folder folder;
  folder.write("tokenizer.model", model);
  expect_error(ErrorCode::kCorrupt, "tokenizer.model", [&] { load_tokenizer(folder.path()); });
}

TEST(TokenizerErrors, DamagedJsonIsReadOrRefused) {
  const std::string whole = slurp(kData / "variety" / "tokenizer.json");
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 100; ++round) {
    std::string damaged = whole;
    // The first quarter has the structure; the rest is vocabulary.
    const size_t range = round % 2 == 0 ? damaged.size() / 4 : damaged.size();
    for (int i = 0; i < 3; ++i) damaged[random() % range] = static_cast<char>(random() & 0x7F);
    try {
      load_tokenizer(Folder().write("tokenizer.json", damaged).path())->encode("some 12 text");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(TokenizerErrors, BrokenVocabularies) {
  const auto broken = [](const std::string& words, const std::function<void(json&)>& edit) {
    json root = gpt2_json();
    edit(root);
    expect_error(ErrorCode::kCorrupt, words, [&] { load(root); });
    expect_error(ErrorCode::kCorrupt, "tokenizer.json", [&] { load(root); });
  };
  broken("another token", [](json& r) { r["model"]["vocab"]["!"] = 2; });
  broken("at most", [](json& r) { r["model"]["vocab"]["!"] = 1 << 30; });
  broken("!", [](json& r) { r["model"]["vocab"]["!"] = -1; });
  broken("!", [](json& r) { r["model"]["vocab"]["!"] = 5000000000; });
  broken("qqqq", [](json& r) { r["model"]["merges"].push_back("qqqq r"); });
  broken("is no pair", [](json& r) { r["model"]["merges"].push_back("a b c"); });
  broken("is no pair", [](json& r) { r["model"]["merges"].push_back(json{"a"}); });
  broken("vocab", [](json& r) { r["model"].erase("vocab"); });
  broken("merges", [](json& r) {
    r["model"].erase("merges");
    r["model"]["type"] = "BPE";
  });
  broken("model", [](json& r) { r.erase("model"); });
  broken("added twice", [](json& r) { r["added_tokens"].push_back(r["added_tokens"][0]); });
  broken("in the vocabulary", [](json& r) { r["added_tokens"][0]["id"] = 9; });
  broken("unk_token", [](json& r) { r["model"]["unk_token"] = "<nope>"; });
  broken("array", [](json& r) { r = json::array(); });
}

TEST(TokenizerErrors, UnsupportedPartsAreNamed) {
  const auto refused = [](const std::string& words, const std::function<void(json&)>& edit) {
    json root = gpt2_json();
    edit(root);
    expect_error(ErrorCode::kUnsupported, words, [&] { load(root); });
    expect_error(ErrorCode::kUnsupported, "supported:", [&] { load(root); });
  };
  const auto split = [](const char* regex) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
  };
  refused("WordPiece", [](json& r) { r["model"]["type"] = "WordPiece"; });
  refused("dropout", [](json& r) { r["model"]["dropout"] = 0.1; });
  refused("##", [](json& r) { r["model"]["continuing_subword_prefix"] = "##"; });
  refused("Lowercase", [](json& r) { r["normalizer"] = {{"type", "Lowercase"}}; });
  refused("BertPreTokenizer", [](json& r) { r["pre_tokenizer"] = {{"type", "BertPreTokenizer"}}; });
  refused("RobertaProcessing", [](json& r) {
    r["post_processor"] = {{"type", "RobertaProcessing"}};
  });
  refused("WordPiece", [](json& r) { r["decoder"] = {{"type", "WordPiece"}}; });
  refused("\\w", [&](json& r) { r["pre_tokenizer"] = split("\\w+"); });
  refused("^", [&](json& r) { r["pre_tokenizer"] = split("^a"); });
  refused("U_REGEX", [&](json& r) { r["pre_tokenizer"] = split("(a"); });
  refused("Sideways", [&](json& r) {
    r["pre_tokenizer"] = split("a");
    r["pre_tokenizer"]["behavior"] = "Sideways";
  });
  refused("nesting", [](json& r) {
    json nested = r["pre_tokenizer"];
    for (int i = 0; i < 40; ++i) {
      nested = json{{"type", "Sequence"}, {"pretokenizers", json::array({nested})}};
    }
    r["pre_tokenizer"] = nested;
  });
}

double mb_per_second(const Tokenizer& tokenizer, const std::string& text, size_t* tokens) {
  const auto start = std::chrono::steady_clock::now();
  *tokens = tokenizer.encode(text).size();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(text.size()) / 1e6 / seconds.count();
}

TEST(TokenizerSpeed, LongTextsAndLongWordsAreNotQuadratic) {
  std::mt19937 random(4);
  std::string prose, letters, spaces(1 << 20, ' '), marks(1 << 20, '=');
  while (prose.size() < (2u << 20)) prose += random_text(random, 4) + " the cat's 12 words\n";
  while (letters.size() < (1u << 20)) letters.push_back(static_cast<char>('a' + random() % 26));
  for (const char* name : {"llama3", "qwen2", "gpt2", "llama2", "llama2_json"}) {
    const auto tokenizer = load_tokenizer(kData / name);
    for (const auto* text : {&prose, &letters, &spaces, &marks}) {
      size_t tokens = 0;
      const double speed = mb_per_second(*tokenizer, *text, &tokens);
      EXPECT_GT(tokens, 0u);
      // Quadratic work on a megabyte takes minutes; the bound leaves room for sanitizers.
      EXPECT_GT(speed, 0.05) << name << " " << text->substr(0, 8);
    }
  }
}

TEST(Tokenizer, IdsThatAreNoTokensAreRefused) {
  const auto refused = [](const json& root, const std::string& words) {
    expect_error(ErrorCode::kCorrupt, words, [&] { load(root); });
  };
  for (const json& id : {json(-1), json(4.5), json(1e80), json(int64_t{1} << 31), json("7")}) {
    json root = gpt2_json();
    root["model"]["vocab"]["!"] = id;
    refused(root, "the id of \"!\" is ");
    root = gpt2_json();
    root["added_tokens"][0]["id"] = id;
    refused(root, "the id of \"" + root["added_tokens"][0]["content"].get<std::string>() + "\"");
  }
}

// libFuzzer found it: a piece with a byte that the normaliser drops, which the library notices only
// when it encodes.
TEST(Tokenizer, ASentencePieceModelThatCannotEncodeIsDamaged) {
  using namespace std::string_literals;
  const std::string model =
      "\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02"
      "\x0a\x0c\x0a\x03<s>\x15\0\0\x80\xbf\x18#"
      "\x0a\x0d\x0a\x04</s>\x15\0\0\0\xc0\x18\x03"
      "\x0a\x0c\x0a\x03\xe2\x96\x81\x15\0\0\0\xc1\x18\x03"
      "\x0a\x0d\x0a\x04\xe2\x96\x81t\x15\0\0\x10\xc1\x18\x01"
      "\x0a\x0a\x0a\x01x\x15\0\0 \xc1\x18\x01"
      "\x0a\x0a\x0a\x01"
      "2\x15\0\0"
      "0\xc1\x18\x01"
      "*\x0f\x0a\x06[IOST]\x15\0\0@\xc1\x18\x04"
      "\x12\x02\x18\x02\x1a\x0e\x0a\x08ide\x09"
      "bity\x18\x01 \0"s;
  Folder folder;
  std::ofstream(folder.path() / "tokenizer.model", std::ios::binary) << model;
  const auto tokenizer = load_tokenizer(folder.path());
  expect_error(ErrorCode::kCorrupt, "is damaged", [&] {
    for (const char* text : {"x", "t2", "\xe2\x96\x81", "a b", "<s>", " "}) tokenizer->encode(text);
  });
}

TEST(Tokenizer, TextsThatNoTokensCanHoldAreRefusedByTheirBytes) {
  for (const char* name : {"llama3", "qwen2", "gpt2", "llama2", "llama2_json"}) {
    const auto tokenizer = load_tokenizer(kData / name);
    size_t longest = 0;
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id)
      longest = std::max(longest, tokenizer->piece(id).size());
    EXPECT_EQ(tokenizer->longest_piece(), longest) << name;
    require_may_fit(*tokenizer, 0, 0);
    require_may_fit(*tokenizer, 7 * longest, 7);
    require_may_fit(*tokenizer, SIZE_MAX, SIZE_MAX);
    for (const auto& [bytes, context] : {std::pair(7 * longest + 1, size_t{7}),
                                         std::pair(size_t{1}, size_t{0}),
                                         {SIZE_MAX, 1000}}) {
      try {
        require_may_fit(*tokenizer, bytes, context);
        ADD_FAILURE() << name << ": " << bytes << " in " << context;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kContextFull);
        EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos);
      }
    }
  }
}

TEST(Tokenizer, ServesManyThreads) {
  const auto tokenizer = load_tokenizer(kData / "llama3");
  std::mt19937 random(5);
  const std::string text = random_text(random, 3000);
  const auto expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) count += tokenizer->encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 5));
}

}  // namespace
}  // namespace pith
