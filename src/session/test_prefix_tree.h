#pragma once
// For tests of prefix trees, on any device: conversations that continue snapshots, beside the
// same ones without.

#include <map>
#include <string>

#include "pith/prefix_tree.h"
#include "session/test_company.h"

namespace pith::test {

// Conversations over two system prompts: each turn is the conversation so far, an answer and a new
// question; some turns are asked again, some have another question. Snapshots go at random.
inline void expect_kept_changes_no_bit(const std::shared_ptr<Engine>& e,
                                       const std::shared_ptr<Engine>& other,
                                       const std::string& policy) {
  const SessionOptions options = with_policy(policy, 1200);
  const auto vocab = static_cast<uint64_t>(e->model()->config().vocab);
  const auto ids_of = [&](size_t count, uint64_t seed) { return some_ids(count, seed, vocab); };
  PrefixTree tree(e, {.max_bytes = size_t{1} << 30});
  const Philox random(77, 0, 0);
  struct Conversation {
    std::vector<int32_t> past;
    std::vector<size_t> points;
    std::map<size_t, Session> live;  // the same conversation without a tree, by its tokens
  };
  std::vector<Conversation> talks(4);
  for (size_t c = 0; c < talks.size(); ++c) {
    talks[c].past = ids_of(70 + c % 2, 900 + c % 2);  // a system prompt for two of them
    talks[c].points = {talks[c].past.size()};
  }
  std::map<Reuse::Kind, size_t> seen;
  for (size_t turn = 0; turn < 15; ++turn) {
    const auto word = random.words(turn);
    const size_t c = word[0] % talks.size();
    Conversation& t = talks[c];
    const std::vector<int32_t> question = ids_of(20 + word[1] % 120, 2000 + turn);
    std::vector<int32_t> all = t.past;
    all.insert(all.end(), question.begin(), question.end());
    std::vector<size_t> points = t.points;
    points.push_back(std::max(t.past.size(), all.size() - kLeastPiece));
    const Prompt prompt{all, points, "", std::to_string(c)};
    Reuse reuse;
    Session session = tree.begin(options, prompt, &reuse);
    ++seen[reuse.kind];
    EXPECT_EQ(session.tokens(), reuse.tokens);
    tree.read(session, prompt);
    // Its oracle: the prompt read cold, or the conversation that was never interrupted.
    Session twin(other, options);
    if (reuse.kind == Reuse::Kind::kAnswer) {
      ASSERT_TRUE(t.live.contains(reuse.tokens)) << reuse.tokens;
      twin = t.live.at(reuse.tokens).fork();
    }
    size_t at = twin.tokens();
    for (const size_t end : prompt_pieces(prompt, at)) {
      twin.append(std::span(all).subspan(at, end - at),
                  end == all.size() ? Append::kPromptEnds : Append::kMore);
      at = end;
    }
    std::vector<int32_t> said = all;
    for (const int32_t id : ids_of(5, 3000 + turn)) {
      const auto a = session.decode(id), b = twin.decode(id);
      ASSERT_TRUE(same_bits({a.begin(), a.end()}, {b.begin(), b.end()}))
          << options.policy.to_string() << ", turn " << turn << " after " << reuse.tokens << " of "
          << all.size() << " tokens, kind " << int(reuse.kind);
      said.push_back(id);
    }
    if (word[2] % 4 != 0) {  // else the client asks again later, from the same past
      EXPECT_TRUE(tree.keep(session, prompt));
      t.past = said, t.points = points;
      t.live.insert_or_assign(said.size(), twin.fork());
    }
    if (word[3] % 3 == 0) tree.shrink(1);
  }
  EXPECT_GT(seen[Reuse::Kind::kPrompt], 0u);
  EXPECT_GT(seen[Reuse::Kind::kAnswer], 0u);
}

}  // namespace pith::test
