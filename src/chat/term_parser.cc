#include "chat/term_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "chat/expression_parser.h"

namespace pith::chat {

using Kind = Expression::Kind;

ExpressionPtr TermParser::primary() {
  const Token token = tokens_.current();
  auto out = make(tokens_, Kind::kConstant);
  switch (token.kind) {
    case Token::Kind::kName:
      tokens_.skip();
      if (token.value == "true" || token.value == "True" || token.value == "false" ||
          token.value == "False") {
        out->constant = Value(token.value == "true" || token.value == "True");
      } else if (token.value == "none" || token.value == "None") {
        out->constant = Value(None{});
      } else {
        if (macro_ != nullptr && token.value == "varargs") macro_->takes_more = true;
        if (macro_ != nullptr && token.value == "kwargs") macro_->named = true;
        out->kind = Kind::kName;
        out->name = token.value;
      }
      return out;
    case Token::Kind::kString: {
      std::string text;
      for (; tokens_.current().kind == Token::Kind::kString; tokens_.skip())
        text += tokens_.current().value;
      out->constant = Value(Text(std::move(text), Origin::kTemplate));
      return out;
    }
    case Token::Kind::kInteger: {
      int64_t value = 0;
      const char* end = token.value.data() + token.value.size();
      const bool wide = std::from_chars(token.value.data(), end, value).ec != std::errc();
      if (token.value.size() > kMaxDigits)
        tokens_.unsupported(fmt::format("an integer of more than {} digits", kMaxDigits));
      out->constant = wide ? wide_integer(token.value) : Value(value);
      tokens_.skip();
      return out;
    }
    case Token::Kind::kFloat: {
      tokens_.skip();
      out->constant = Value(std::strtod(token.value.c_str(), nullptr));  // infinity as in Python
      return out;
    }
    default: break;
  }
  if (tokens_.is_operator("(")) return parenthesised();
  if (tokens_.is_operator("[")) return list_literal();
  if (tokens_.is_operator("{")) return dict_literal();
  tokens_.corrupt(fmt::format("expected an expression, found {}", tokens_.found()));
}

ExpressionPtr TermParser::parenthesised() {
  const TokenCursor::Nested nested(tokens_);
  auto tuple = make(tokens_, Kind::kTuple);
  tokens_.expect_operator("(");
  if (tokens_.take_operator(")")) return tuple;
  auto first = expressions_.expression();
  if (tokens_.take_operator(")")) return first;
  adopt(tokens_, *tuple, std::move(first));
  while (tokens_.take_operator(",")) {
    if (tokens_.is_operator(")")) break;
    adopt(tokens_, *tuple, expressions_.expression());
  }
  tokens_.expect_operator(")");
  return tuple;
}

ExpressionPtr TermParser::list_literal() {
  const TokenCursor::Nested nested(tokens_);
  auto out = make(tokens_, Kind::kList);
  tokens_.expect_operator("[");
  while (!tokens_.is_operator("]")) {
    if (!out->children.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("]")) break;
    adopt(tokens_, *out, expressions_.expression());
  }
  tokens_.expect_operator("]");
  return out;
}

ExpressionPtr TermParser::dict_literal() {
  const TokenCursor::Nested nested(tokens_);
  auto out = make(tokens_, Kind::kDict);
  tokens_.expect_operator("{");
  while (!tokens_.is_operator("}")) {
    if (!out->children.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    auto key = expressions_.expression();
    adopt(tokens_, *out, std::move(key));
    tokens_.expect_operator(":");
    adopt(tokens_, *out, expressions_.expression());
  }
  tokens_.expect_operator("}");
  return out;
}

ExpressionPtr TermParser::subscript(ExpressionPtr inner) {
  const TokenCursor::Nested nested(tokens_);
  auto out = make(tokens_, Kind::kIndex, std::move(inner));
  tokens_.expect_operator("[");
  ExpressionPtr parts[3];
  int colons = 0;
  for (;;) {
    if (!tokens_.is_operator(":") && !tokens_.is_operator("]"))
      parts[colons] = expressions_.expression();
    if (colons == 2 || !tokens_.take_operator(":")) break;
    ++colons;
  }
  if (tokens_.is_operator(",")) tokens_.unsupported("an index of several parts");
  tokens_.expect_operator("]");
  if (colons == 0 && parts[0] == nullptr) tokens_.corrupt("an empty index");
  if (colons > 0) out->kind = Kind::kSlice;
  for (int i = 0; i < (colons > 0 ? 3 : 1); ++i) adopt(tokens_, *out, std::move(parts[i]));
  return out;
}

ExpressionPtr TermParser::call(ExpressionPtr inner) {
  auto out = make(tokens_, Kind::kCall, std::move(inner));
  const Expression& callee = *out->children[0];
  if (callee.kind == Kind::kAttribute || callee.kind == Kind::kName) out->name = callee.name;
  arguments(*out);
  return out;
}

void TermParser::arguments(Expression& call) {
  const TokenCursor::Nested nested(tokens_);
  tokens_.expect_operator("(");
  for (bool first = true; !tokens_.is_operator(")"); first = false) {
    if (!first) tokens_.expect_operator(",");
    if (tokens_.is_operator(")")) break;
    if (tokens_.is_operator("*") || tokens_.is_operator("**")) {
      std::string sign = tokens_.take();
      auto value = expressions_.expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(sign), std::move(value));
      continue;
    }
    const bool named = tokens_.current().kind == Token::Kind::kName &&
                       tokens_.next().kind == Token::Kind::kOperator && tokens_.next().value == "=";
    if (named) {
      std::string name = tokens_.current().value;
      tokens_.skip(2);
      auto value = expressions_.expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) tokens_.corrupt("an argument without a name after one with a name");
      adopt(tokens_, call, expressions_.expression());
    }
  }
  tokens_.expect_operator(")");
}

/// Whether what follows a test's name is its argument, by Jinja2's rule.
bool TermParser::begins_argument() const {
  switch (tokens_.current().kind) {
    case Token::Kind::kName:
      return !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and") &&
             !tokens_.is_name("is") && !tokens_.is_name("if") && !tokens_.is_name("in") &&
             !tokens_.is_name("not") && !tokens_.is_name("recursive");
    case Token::Kind::kString:
    case Token::Kind::kInteger:
    case Token::Kind::kFloat: return true;
    default: return tokens_.is_operator("[") || tokens_.is_operator("{");
  }
}

ExpressionPtr TermParser::test(ExpressionPtr inner) {
  const bool negated = tokens_.take_name("not");
  auto out = make(tokens_, Kind::kTest, std::move(inner));
  out->line = tokens_.current().line;
  out->name = tokens_.expect_name("the name of a test");
  if (tokens_.is_operator("(")) {
    arguments(*out);
  } else if (begins_argument()) {
    adopt(tokens_, *out, expressions_.postfix(primary()));
  }
  if (!negated) return out;
  auto opposite = make(tokens_, Kind::kLogic, std::move(out));
  opposite->operators.push_back(Operator::kNot);
  return opposite;
}

}  // namespace pith::chat
