#pragma once
// The terms of expressions: names, literals, indexes, calls, tests.

#include <utility>

#include "chat/token_cursor.h"

namespace pith::chat {

class ExpressionParser;

class TermParser {
 public:
  TermParser(TokenCursor& tokens, ExpressionParser& expressions)
      : tokens_(tokens), expressions_(expressions) {}

  ExpressionPtr primary();
  ExpressionPtr subscript(ExpressionPtr inner);
  ExpressionPtr call(ExpressionPtr inner);
  void arguments(Expression& call);
  /// Behind "is".
  ExpressionPtr test(ExpressionPtr inner);
  /// The macro whose body follows, which is told of the arguments that it names; null: none.
  /// Returns the one before.
  Node* enter(Node* macro) { return std::exchange(macro_, macro); }

 private:
  ExpressionPtr parenthesised();
  ExpressionPtr list_literal();
  ExpressionPtr dict_literal();
  bool begins_argument() const;

  TokenCursor& tokens_;
  ExpressionParser& expressions_;
  Node* macro_ = nullptr;  // the innermost
};

}  // namespace pith::chat
