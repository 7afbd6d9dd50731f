#include "chat/target_parser.h"

#include <fmt/format.h>

#include <utility>

namespace pith::chat {

std::string TargetParser::name_to_set() {
  std::string name = tokens_.expect_name("a name");
  for (const char* word : {"true", "false", "none", "True", "False", "None", "loop", "not", "if",
                           "else", "and", "or", "in", "is"}) {
    if (name == word) tokens_.corrupt(fmt::format("'{}' cannot be set", name));
  }
  return name;
}

Target TargetParser::target() {
  const TokenCursor::Nested nested(tokens_);
  if (!tokens_.take_operator("(")) return {name_to_set(), {}};
  std::vector<Target> parts = targets(")");
  tokens_.expect_operator(")");
  if (parts.size() == 1 && !tokens_.behind_comma()) return std::move(parts[0]);
  return {"", std::move(parts)};
}

std::vector<Target> TargetParser::targets(std::string_view end) {
  std::vector<Target> out;
  do {
    if (!out.empty() && (tokens_.is_operator(end) || tokens_.is_name(end))) break;
    out.push_back(target());
  } while (tokens_.take_operator(","));
  return out;
}

void TargetParser::parameters(Node& macro) {
  tokens_.expect_operator("(");
  while (!tokens_.is_operator(")")) {
    if (macro.names.size() > 1) tokens_.expect_operator(",");
    if (tokens_.is_operator(")")) break;
    macro.names.push_back(name_to_set());
    macro.defaults.push_back(tokens_.take_operator("=") ? expressions_.expression() : nullptr);
    const bool bare = macro.defaults.back() == nullptr;
    if (bare && macro.defaults.size() > 1 && macro.defaults[macro.defaults.size() - 2] != nullptr)
      tokens_.corrupt("a parameter without a default after one with a default");
  }
  tokens_.expect_operator(")");
}

}  // namespace pith::chat
