// Saved sessions: they go on in another engine as if nothing had been, and only under what they
// were saved under.

#include "pith/saved.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/digest.h"
#include "model/test_files.h"
#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/prefix_tree.h"
#include "pith/session.h"
#include "session/test_demo.h"
#include "session/test_saved.h"

namespace pith {
namespace {

using test::demo;
using testing_files::expect_error;
using testing_files::TemporaryFolder;

StandaloneOptions options_of(const std::string& policy) {
  StandaloneOptions o;
  o.policy = Policy::parse(policy);
  o.context = 700;
  o.chunk = 100;
  o.threads = 1;
  o.seed = 5;
  return o;
}

std::vector<int32_t> some_ids(size_t first, size_t count) {
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(10 + 7 * (first + i) % 300);
  return ids;
}

/// 30 tokens decoded, a prompt of 60, 10 more; all logits.
std::vector<float> go_on(Session& session) {
  std::vector<float> all;
  const auto add = [&](std::span<const float> x) { all.insert(all.end(), x.begin(), x.end()); };
  for (const int32_t id : some_ids(1000, 30)) add(session.decode(id));
  add(session.prefill(some_ids(2000, 60)));
  for (const int32_t id : some_ids(3000, 10)) add(session.decode(id));
  return all;
}

TEST(Saved, GoesOnBitForBitInAnotherEngine) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith";
  for (const char* policy :
       {"exact", "snapkv(budget=64,interval=16)+int4,window=32",
        "express(heavy=0,s=64)+kivi(bits=4)",
        "exact+csr(s=4,dict=models/demo/csr.safetensors,online=0);layers=4-7:exact+int4"})
    for (const size_t count : {1, 63, 513}) {
      std::string text = policy;
      const std::string name = "models/demo/";
      if (const size_t at = text.find(name); at != std::string::npos)
        text.replace(at, name.size(), (repo_dir() / name).string());
      StandaloneOptions o = options_of(text);
      o.protect = {{10, 20}};
      o.error_probe = {64, 4, 0};
      SCOPED_TRACE(fmt::format("{}, {} tokens", policy, count));
      test::expect_goes_on_from_file(demo(), o, some_ids(0, count), path, go_on);
    }
}

// A prompt that was saved in the middle is a snapshot of its prefix as one that was not.
TEST(Saved, KeepsWherePromptsWereCut) {
  EngineOptions one_thread;
  one_thread.chunk = 100;
  one_thread.threads = 1;
  const auto engine = std::make_shared<Engine>(demo(), one_thread);
  SessionOptions o;
  o.policy = Policy::parse("snapkv(budget=64)+int4,window=32");
  o.context = 700;
  const auto ids = some_ids(0, 400);
  const std::vector<size_t> points = {130, 290};
  const Prompt prompt{ids, points};
  Session session(engine, o);
  for (const auto& [first, count] : {std::pair{0, 130}, std::pair{130, 160}})
    session.append(std::span(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                   Append::kMore);
  std::vector<std::byte> bytes;
  session.save([&](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  });
  PrefixTree tree(engine, {.max_bytes = size_t{1} << 30});
  EXPECT_TRUE(tree.keep(Session::restore(engine, bytes, o), prompt));
  Reuse reuse;
  Session warm = tree.begin(o, prompt, &reuse);
  EXPECT_EQ(reuse.tokens, 290u) << reuse.reason;
  tree.read(warm, prompt);
  session.append(std::span(ids).subspan(290), Append::kPromptEnds);
  const auto got = warm.decode(11);
  const std::vector<float> logits(got.begin(), got.end());
  EXPECT_TRUE(std::ranges::equal(logits, session.decode(11)));
}

TEST(Saved, AnEmptySessionToo) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith";
  Session empty(demo(), options_of("exact+int4"));
  empty.save(path);
  Session other = Session::restore(demo(), path, options_of("exact+int4"));
  EXPECT_EQ(go_on(other), go_on(empty));
}

TEST(Saved, OfAModelWithoutATokenizer) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith", copy = folder.path() / "demo";
  std::filesystem::copy(repo_dir() / "models/demo", copy);
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    std::filesystem::remove(copy / name);
  const auto model = Model::load(copy);
  const StandaloneOptions o = options_of("exact+int4");
  Session whole(model, o);
  whole.append(some_ids(0, 40));
  whole.save(path);
  Session other = Session::restore(model, path, o);
  EXPECT_EQ(go_on(other), go_on(whole));
  expect_error(ErrorCode::kInvalidArgument, {"its tokenizer", "'none'"},
               [&] { Session::restore(demo(), path, o); });
}

TEST(Saved, SessionsOfOneEngine) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith";
  const StandaloneOptions o = options_of("keydiff(budget=64)+int8");
  const auto engine = std::make_shared<Engine>(demo(), static_cast<const EngineOptions&>(o));
  const auto& own = static_cast<const SessionOptions&>(o);
  Session whole(engine, own);
  whole.append(some_ids(0, 200));
  whole.save(path);
  Session other = Session::restore(engine, path, own);
  EXPECT_EQ(go_on(other), go_on(whole));
}

TEST(Saved, IsRefusedByWhatDiffers) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith";
  StandaloneOptions good = options_of("uniform(budget=25%)+int4");
  good.protect = {{10, 20}};
  Session session(demo(), good);
  session.append(some_ids(0, 77));
  session.save(path);
  using Change = std::function<void(StandaloneOptions&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"its policy", [](auto& o) { o.policy = Policy::parse("uniform(budget=25%)+int8"); }},
      {"its policy", [](auto& o) { o.context = 800; }},
      {"its policy", [](auto& o) { o.percent_of = 300; }},
      {"its seed", [](auto& o) { o.seed = 6; }},
      {"its chunk", [](auto& o) { o.chunk = 101; }},
      {"its arithmetic", [](auto& o) { o.f32_arithmetic = true; }},
      {"its isa", [](auto& o) { o.isa = "scalar"; }},
      {"its error probe", [](auto& o) { o.error_probe.rows = 64; }},
      {"its protected tokens", [](auto& o) {
         o.protect = {{10, 21}};
       }}};
  for (const auto& [word, change] : changes) {
    StandaloneOptions other = good;
    change(other);
    expect_error(ErrorCode::kInvalidArgument, {"s.pith", word},
                 [&] { Session::restore(demo(), path, other); });
  }
  const StandaloneOptions exact = options_of("exact");
  Session unbudgeted(demo(), exact);
  unbudgeted.save(folder.path() / "e.pith");
  StandaloneOptions longer = exact;
  longer.context = 701;
  expect_error(ErrorCode::kInvalidArgument, {"its context", "'700'", "'701'"},
               [&] { Session::restore(demo(), folder.path() / "e.pith", longer); });
  EXPECT_EQ(Session::restore(demo(), path, good).tokens(), 77u);
}

TEST(Saved, IsRefusedForAModelThatWasTrainedOn) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith", copy = folder.path() / "demo";
  const StandaloneOptions o = options_of("exact+int4");
  Session session(demo(), o);
  session.append(some_ids(0, 40));
  session.save(path);
  std::filesystem::copy(repo_dir() / "models/demo", copy);
  EXPECT_EQ(Session::restore(Model::load(copy), path, o).tokens(), 40u);
  // A tensor that makes neither keys nor values of the first or last layer moves a little.
  std::string file = testing_files::read_file(copy / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  const auto json = nlohmann::json::parse(file.substr(8, header));
  const auto& at = json.at("model.layers.4.mlp.down_proj.weight").at("data_offsets");
  const size_t first = at[0], last = at[1];
  for (size_t i = first; i < last; i += 2) file[8 + header + i] ^= 1;
  testing_files::write_file(copy / "model.safetensors", file);
  const auto other = Model::load(copy);
  EXPECT_EQ(other->config().fingerprint, demo()->config().fingerprint) << "choose another tensor";
  expect_error(ErrorCode::kInvalidArgument, {"s.pith", "its weights"},
               [&] { Session::restore(other, path, o); });
}

/// The file with byte `at` of its data changed and the digests made right again.
std::string forged(const std::string& good, const SavedSession::Part& part, size_t before,
                   size_t at) {
  std::string bad = good;
  uint64_t header = 0, image = 0;
  std::memcpy(&header, bad.data() + 24, sizeof(header));
  const size_t data = 64 + header;
  std::memcpy(&image, bad.data() + data, sizeof(image));
  const size_t begin = data + 8 + image + before;
  const auto digest = [&](size_t from, size_t count) {
    return digest_of(std::as_bytes(std::span(bad.data() + from, count)));
  };
  const std::string old_text = digest(begin, part.bytes).text();
  bad[begin + at] = static_cast<char>(bad[begin + at] ^ 0x55);
  const size_t where = bad.find(old_text);
  bad.replace(where, old_text.size(), digest(begin, part.bytes).text());
  const Digest of_header = digest(64, header), of_data = digest(data, bad.size() - data);
  std::memcpy(bad.data() + 32, &of_header, sizeof(of_header));
  std::memcpy(bad.data() + 48, &of_data, sizeof(of_data));
  return bad;
}

TEST(Saved, ForgedStateIsRefusedOrGoesOn) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith", other = folder.path() / "bad.pith";
  const StandaloneOptions o = options_of("express(heavy=0,s=16)+int4,window=8");
  Session session(demo(), o);
  session.append(some_ids(0, 90));
  session.save(path);
  const std::string good = testing_files::read_file(path);
  const SavedSession saved = read_saved(path, true);
  size_t before = 0, refused = 0, taken = 0;
  for (const SavedSession::Part& part : saved.parts) {
    // Counts lie among the first bytes; of the arrays behind them some are enough.
    for (size_t at = 0; at < part.bytes; at += at < 120 ? 1 : part.bytes / 7 + 1) {
      testing_files::write_file(other, forged(good, part, before, at));
      try {
        Session restored = Session::restore(demo(), other, o);
        restored.decode(5);
        ++taken;
      } catch (const Error& e) {
        ++refused;
        EXPECT_NE(e.code(), ErrorCode::kInternal) << e.what();
      }
    }
    before += (part.bytes + 63) / 64 * 64;
  }
  EXPECT_GT(refused, 100u);
  EXPECT_GT(taken, 20u);
  // A healthy one afterwards, with what a failed restore left in the process.
  Session restored = Session::restore(demo(), path, o);
  EXPECT_EQ(go_on(restored), go_on(session));
}

/// Gives bytes in pieces of at most `piece`; `given` is how many it gave.
StateSource source_of(const std::string& bytes, size_t piece, size_t& given) {
  return [&bytes, piece, &given](std::span<std::byte> to) {
    EXPECT_LE(to.size(), size_t{1} << 20) << "more at once than anything here is long";
    const size_t n = std::min({piece, to.size(), bytes.size() - given});
    std::memcpy(to.data(), bytes.data() + given, n);
    given += n;
    return n;
  };
}

// NOLINTBEGIN(bugprone-use-after-move): what was not taken may be used again.
TEST(Saved, IsRestoredFromASourceThatIsReadOnce) {
  EngineOptions one_thread;
  one_thread.chunk = 100;
  one_thread.threads = 1;
  const auto engine = std::make_shared<Engine>(demo(), one_thread);
  SessionOptions o;
  o.policy = Policy::parse("keydiff(budget=48)+int4,window=16");
  o.context = 700;
  Session session(engine, o), empty(engine, o);
  session.append(some_ids(0, 90));
  std::string good;
  session.save([&](std::span<const std::byte> more) {
    good.append(reinterpret_cast<const char*>(more.data()), more.size());
  });
  const std::vector<float> right = go_on(session);
  const std::string with_more = good + "what comes after it";
  for (const size_t piece : {size_t{1}, size_t{63}, size_t{1} << 20}) {
    size_t given = 0;
    Session restored = Session::restore(engine, source_of(with_more, piece, given), o);
    EXPECT_EQ(given, good.size());
    EXPECT_EQ(go_on(restored), right);
  }
  empty.reserve(100);  // the engine's own scratch grows once
  empty.reserve(0);
  const size_t before = engine->bytes_in_use() + engine->bytes_reserved();
  for (size_t at = 0; at < good.size(); at += at < 80 ? 1 : good.size() / 97) {
    SCOPED_TRACE(at);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    for (const std::string& broken : {bad, good.substr(0, at)}) {
      empty.reserve(100);
      size_t given = 0;
      try {
        Session::restore(std::move(empty), source_of(broken, 5000, given));
        ADD_FAILURE() << "taken";
      } catch (const Error& e) {
        EXPECT_TRUE(e.code() == ErrorCode::kCorrupt || e.code() == ErrorCode::kUnsupported)
            << e.what();
      }
    }
  }
  expect_error(ErrorCode::kInvalidArgument, {"policy"}, [&] {
    SessionOptions other = o;
    other.policy = Policy::parse("exact");
    size_t given = 0;
    Session::restore(engine, source_of(good, 100, given), other);
  });
  expect_error(ErrorCode::kInvalidArgument, {"wrote", "asked for"}, [&] {
    Session::restore(
        engine, [](std::span<std::byte> to) { return to.size() + 1; }, o);
  });
  expect_error(ErrorCode::kInvalidArgument, {"source"},
               [&] { Session::restore(engine, StateSource(), o); });
  EXPECT_THROW(
      Session::restore(
          engine, [](std::span<std::byte>) -> size_t { throw std::runtime_error("gone"); }, o),
      std::runtime_error);
  empty.reserve(0);
  EXPECT_EQ(engine->bytes_in_use() + engine->bytes_reserved(), before);
  empty.reserve(200);
  size_t given = 0;
  Session restored = Session::restore(std::move(empty), source_of(good, 5000, given));
  EXPECT_GT(engine->bytes_reserved(), 0u) << "the room of the empty one";
  EXPECT_EQ(go_on(restored), right);
}
// NOLINTEND(bugprone-use-after-move)

TEST(Saved, AFileSaysWhatItIs) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.pith";
  Session session(demo(), options_of("exact+int4"));
  session.append(some_ids(0, 40));
  session.save(path);
  const SavedSession saved = read_saved(path, true);
  EXPECT_EQ(saved.tokens, some_ids(0, 40));
  EXPECT_EQ(saved.field("context"), "700");
  EXPECT_EQ(saved.field("seed"), "5");
  EXPECT_NE(saved.field("policy").find("int4"), std::string::npos);
  EXPECT_EQ(saved.field("nothing"), "");
  EXPECT_EQ(saved.parts.size(), 3u + 8u);
  EXPECT_EQ(saved.bytes, std::filesystem::file_size(path));
  // A compressed session takes the bytes of its ledger on disk, and a little more.
  const Ledger ledger = session.ledger();
  EXPECT_LT(saved.bytes, ledger.cache_bytes() + ledger.slack + 20000);
  expect_error(ErrorCode::kCorrupt, {"no session"},
               [&] { read_saved(repo_dir() / "models/demo/model.safetensors"); });
  expect_error(ErrorCode::kNotFound, {}, [&] { read_saved(folder.path() / "none"); });
}

}  // namespace
}  // namespace pith
