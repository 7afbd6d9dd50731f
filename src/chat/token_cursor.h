#pragma once
// A place in the tokens of a template, and what is said of a token that does not belong there.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/lexer.h"
#include "chat/syntax.h"

namespace pith::chat {

class TokenCursor {
 public:
  TokenCursor(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void skip(size_t count = 1) { at_ += count; }
  void back() { --at_; }
  /// The value of the current token, which is taken.
  std::string take() { return tokens_[at_++].value; }
  /// Whether a comma stands before the token that was taken last.
  bool behind_comma() const { return tokens_[at_ - 2].value == ","; }

  bool is_name(std::string_view word) const;
  bool is_operator(std::string_view sign) const;
  bool take_name(std::string_view word);
  bool take_operator(std::string_view sign);
  void expect_operator(std::string_view sign);
  void expect_block_end();
  /// `what`: a name of what, for the message.
  std::string expect_name(const char* what);

  /// The current token, for a message.
  std::string found() const;
  [[noreturn]] void corrupt(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;

  /// Counts nesting while it lives. Throws kUnsupported beyond kMaxNesting.
  class Nested {
   public:
    explicit Nested(TokenCursor& tokens);
    ~Nested() { --tokens_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenCursor& tokens_;
  };

 private:
  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0;
};

/// An expression at the current token.
ExpressionPtr make(const TokenCursor& tokens, Expression::Kind kind);
/// One at its child's line.
ExpressionPtr make(const TokenCursor& tokens, Expression::Kind kind, ExpressionPtr child);
/// Throws kUnsupported for a tree that is too deep.
void adopt(const TokenCursor& tokens, Expression& parent, ExpressionPtr child);

}  // namespace pith::chat
