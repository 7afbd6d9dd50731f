#pragma once
// Expressions by recursive descent: operators, and what follows their terms.

#include "chat/token_cursor.h"

namespace pith::chat {

class TermParser;

class ExpressionParser {
 public:
  ExpressionParser(TokenCursor& tokens, TermParser& terms) : tokens_(tokens), terms_(terms) {}

  ExpressionPtr expression();
  /// One expression, or a tuple of several without parentheses.
  ExpressionPtr list_or_expression(bool conditional);
  ExpressionPtr unary(bool with_filters);
  /// The attributes, indexes and calls behind an expression, if there are any.
  ExpressionPtr postfix(ExpressionPtr inner);
  /// The filters and tests behind an expression, if there are any.
  ExpressionPtr filters(ExpressionPtr inner);
  /// One filter, behind its "|".
  ExpressionPtr filter(ExpressionPtr inner);

 private:
  // Loosest first.
  ExpressionPtr or_expression();
  ExpressionPtr and_expression();
  ExpressionPtr not_expression();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr binary(Expression::Kind kind, Operator op, ExpressionPtr a, ExpressionPtr b) const;

  TokenCursor& tokens_;
  TermParser& terms_;
};

}  // namespace pith::chat
