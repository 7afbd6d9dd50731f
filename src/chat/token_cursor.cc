#include "chat/token_cursor.h"

#include <fmt/format.h>

#include "chat/library.h"

namespace pith::chat {
namespace {

// A chain such as a + b + c leans to the left as deep as it is long.
constexpr int kMaxTreeDepth = 250;

}  // namespace

TokenCursor::Nested::Nested(TokenCursor& tokens) : tokens_(tokens) {
  if (++tokens_.nesting_ > kMaxNesting)
    tokens_.unsupported("more than " + std::to_string(kMaxNesting) + " levels of nesting");
}

bool TokenCursor::is_name(std::string_view word) const {
  return current().kind == Token::Kind::kName && current().value == word;
}

bool TokenCursor::is_operator(std::string_view sign) const {
  return current().kind == Token::Kind::kOperator && current().value == sign;
}

bool TokenCursor::take_name(std::string_view word) {
  const bool found = is_name(word);
  if (found) ++at_;
  return found;
}

bool TokenCursor::take_operator(std::string_view sign) {
  const bool found = is_operator(sign);
  if (found) ++at_;
  return found;
}

std::string TokenCursor::found() const {
  const Token& token = current();
  switch (token.kind) {
    case Token::Kind::kOutputEnd: return "the end }}";
    case Token::Kind::kBlockEnd: return "the end %}";
    case Token::Kind::kEnd: return "the end of the template";
    case Token::Kind::kString: return "a string";
    default: return fmt::format("'{}'", token.value);
  }
}

void TokenCursor::expect_operator(std::string_view sign) {
  if (!take_operator(sign)) corrupt(fmt::format("expected '{}', found {}", sign, found()));
}

void TokenCursor::expect_block_end() {
  if (current().kind != Token::Kind::kBlockEnd)
    corrupt(fmt::format("expected the end %}} of the tag, found {}", found()));
  ++at_;
}

std::string TokenCursor::expect_name(const char* what) {
  if (current().kind != Token::Kind::kName)
    corrupt(fmt::format("expected {}, found {}", what, found()));
  return tokens_[at_++].value;
}

void TokenCursor::corrupt(const std::string& what) const {
  fail_at(ErrorCode::kCorrupt, name_, current().line, what);
}

void TokenCursor::unsupported(const std::string& what) const {
  fail_at(ErrorCode::kUnsupported, name_, current().line, "not supported: " + what);
}

ExpressionPtr make(const TokenCursor& tokens, Expression::Kind kind) {
  auto out = std::make_unique<Expression>();
  out->kind = kind;
  out->line = tokens.current().line;
  return out;
}

ExpressionPtr make(const TokenCursor& tokens, Expression::Kind kind, ExpressionPtr child) {
  auto out = make(tokens, kind);
  out->line = child->line;
  adopt(tokens, *out, std::move(child));
  return out;
}

void adopt(const TokenCursor& tokens, Expression& parent, ExpressionPtr child) {
  if (child != nullptr) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxTreeDepth)
      tokens.unsupported(fmt::format("an expression of more than {} levels", kMaxTreeDepth));
  }
  parent.children.push_back(std::move(child));
}

}  // namespace pith::chat
