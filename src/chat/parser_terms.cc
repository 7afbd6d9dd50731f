// The terms of expressions: names, literals, indexes, calls.

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "chat/parser.h"

namespace pith::chat {

using Kind = Expression::Kind;

ExpressionPtr Parser::primary() {
  const Token token = current();
  auto out = make(Kind::kConstant);
  switch (token.kind) {
    case Token::Kind::kName:
      ++at_;
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
      for (; current().kind == Token::Kind::kString; ++at_) text += current().value;
      out->constant = Value(Text(std::move(text), Origin::kTemplate));
      return out;
    }
    case Token::Kind::kInteger: {
      int64_t value = 0;
      const char* end = token.value.data() + token.value.size();
      if (std::from_chars(token.value.data(), end, value).ec != std::errc())
        unsupported("an integer of more than 64 bits");
      ++at_;
      out->constant = Value(value);
      return out;
    }
    case Token::Kind::kFloat: {
      ++at_;
      out->constant = Value(std::strtod(token.value.c_str(), nullptr));  // infinity as in Python
      return out;
    }
    default: break;
  }
  if (is_operator("(")) return parenthesised();
  if (is_operator("[")) return list_literal();
  if (is_operator("{")) return dict_literal();
  corrupt(fmt::format("expected an expression, found {}", found()));
}

ExpressionPtr Parser::parenthesised() {
  const Nested nested(*this);
  auto tuple = make(Kind::kTuple);
  expect_operator("(");
  if (take_operator(")")) return tuple;
  auto first = expression();
  if (take_operator(")")) return first;
  adopt(*tuple, std::move(first));
  while (take_operator(",")) {
    if (is_operator(")")) break;
    adopt(*tuple, expression());
  }
  expect_operator(")");
  return tuple;
}

ExpressionPtr Parser::list_literal() {
  const Nested nested(*this);
  auto out = make(Kind::kList);
  expect_operator("[");
  while (!is_operator("]")) {
    if (!out->children.empty()) expect_operator(",");
    if (is_operator("]")) break;
    adopt(*out, expression());
  }
  expect_operator("]");
  return out;
}

ExpressionPtr Parser::dict_literal() {
  const Nested nested(*this);
  auto out = make(Kind::kDict);
  expect_operator("{");
  while (!is_operator("}")) {
    if (!out->children.empty()) expect_operator(",");
    if (is_operator("}")) break;
    auto key = expression();
    adopt(*out, std::move(key));
    expect_operator(":");
    adopt(*out, expression());
  }
  expect_operator("}");
  return out;
}

ExpressionPtr Parser::subscript(ExpressionPtr inner) {
  const Nested nested(*this);
  auto out = make(Kind::kIndex, std::move(inner));
  expect_operator("[");
  ExpressionPtr parts[3];
  int colons = 0;
  for (;;) {
    if (!is_operator(":") && !is_operator("]")) parts[colons] = expression();
    if (colons == 2 || !take_operator(":")) break;
    ++colons;
  }
  if (is_operator(",")) unsupported("an index of several parts");
  expect_operator("]");
  if (colons == 0 && parts[0] == nullptr) corrupt("an empty index");
  if (colons > 0) out->kind = Kind::kSlice;
  for (int i = 0; i < (colons > 0 ? 3 : 1); ++i) adopt(*out, std::move(parts[i]));
  return out;
}

ExpressionPtr Parser::call(ExpressionPtr inner) {
  auto out = make(Kind::kCall, std::move(inner));
  const Expression& callee = *out->children[0];
  if (callee.kind == Kind::kAttribute || callee.kind == Kind::kName) out->name = callee.name;
  arguments(*out);
  return out;
}

void Parser::arguments(Expression& call) {
  const Nested nested(*this);
  expect_operator("(");
  for (bool first = true; !is_operator(")"); first = false) {
    if (!first) expect_operator(",");
    if (is_operator(")")) break;
    if (is_operator("*") || is_operator("**")) {
      std::string sign = tokens_[at_++].value;
      auto value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(sign), std::move(value));
      continue;
    }
    const bool named = current().kind == Token::Kind::kName &&
                       next().kind == Token::Kind::kOperator && next().value == "=";
    if (named) {
      std::string name = current().value;
      at_ += 2;
      auto value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) corrupt("an argument without a name after one with a name");
      adopt(call, expression());
    }
  }
  expect_operator(")");
}

}  // namespace pith::chat
