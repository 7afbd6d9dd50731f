#include "model/tokenizers/token_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace pith {
namespace {

TEST(TokenTable, IsAMapOfStrings) {
  for (const size_t room : {0u, 1u, 3u, 5000u}) {
    std::mt19937 random(3);
    TokenTable table;
    EXPECT_EQ(table.find("x"), -1) << "of nothing";
    table.reserve(room, room);
    std::map<std::string, int32_t> oracle;
    for (int i = 0; i < 5000; ++i) {
      std::string text(random() % 4, 'a');
      for (char& c : text) c = static_cast<char>(random() % 7 == 0 ? '\0' : 'a' + random() % 9);
      const auto fresh = oracle.emplace(text, static_cast<int32_t>(oracle.size()));
      const auto [number, is_new] = table.add(text);
      EXPECT_EQ(number, fresh.first->second);
      EXPECT_EQ(is_new, fresh.second);
    }
    ASSERT_EQ(table.size(), oracle.size());
    for (const auto& [text, number] : oracle) {
      EXPECT_EQ(table.find(text), number);
      EXPECT_EQ(table[static_cast<size_t>(number)], text);
      EXPECT_EQ(table.find(text + "zz"), -1);
    }
  }
}

}  // namespace
}  // namespace pith
