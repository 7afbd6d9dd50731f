// Calls come out the same, however the text is cut.

#include "serve/tool_reader.h"

#include <gtest/gtest.h>

namespace pith::serve {
namespace {

/// Words as they are, calls as NAME(ARGUMENTS).
std::string read(const std::string& text, size_t step, bool begun = false) {
  ToolReader reader(begun);
  std::string out;
  const auto take = [&](const std::vector<ToolPiece>& pieces) {
    for (const ToolPiece& p : pieces) {
      out += p.text;
      if (p.kind == ToolPiece::Kind::kBegins) out += "(";
      if (p.kind == ToolPiece::Kind::kEnds) out += ")";
    }
  };
  for (size_t i = 0; i < text.size(); i += step) take(reader.push(text.substr(i, step)));
  take(reader.finish());
  return out;
}

TEST(ToolReader, HoweverTheTextIsCut) {
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}\n</tool_call>";
  const std::string shown = "f({\"a\": \"}\\\"{\"})";
  for (const size_t step : {1u, 2u, 3u, 7u, 1000u}) {
    EXPECT_EQ(read(call, step), shown);
    EXPECT_EQ(read("Well, <b>\n\n" + call + "\n" + call + "\n", step), "Well, <b>" + shown + shown);
    EXPECT_EQ(read(call.substr(12), step, true), shown);
    EXPECT_EQ(read("a < b <tool", step), "a < b <tool");
    EXPECT_EQ(read(call.substr(0, 45), step), "f({\"a\": )");
  }
}

// A stop string may end an answer within a call, which must not be taken for one to carry out.
TEST(ToolReader, SaysThatACallWasCut) {
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  for (const size_t left : {0u, 1u, 12u, 14u, 16u}) {
    ToolReader reader(false);
    reader.push(call.substr(0, call.size() - left));
    reader.finish();
    EXPECT_EQ(reader.calls(), 1u);
    EXPECT_EQ(reader.cut(), left > 14) << left;
  }
}

}  // namespace
}  // namespace pith::serve
