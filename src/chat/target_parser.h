#pragma once
// The names that statements set: targets of for, set and with, parameters of macros.

#include <string>
#include <string_view>
#include <vector>

#include "chat/expression_parser.h"
#include "chat/token_cursor.h"

namespace pith::chat {

class TargetParser {
 public:
  TargetParser(TokenCursor& tokens, ExpressionParser& expressions)
      : tokens_(tokens), expressions_(expressions) {}

  /// A name that the template sets.
  std::string name_to_set();
  /// A name, or targets in parentheses.
  Target target();
  /// One or more, up to the sign or the word `end`.
  std::vector<Target> targets(std::string_view end);
  /// "(name, name = default, ...)" of a macro, behind its name.
  void parameters(Node& macro);

 private:
  TokenCursor& tokens_;
  ExpressionParser& expressions_;
};

}  // namespace pith::chat
