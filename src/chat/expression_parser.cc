#include "chat/expression_parser.h"

#include <utility>

#include "chat/term_parser.h"

namespace pith::chat {

using Kind = Expression::Kind;

ExpressionPtr ExpressionParser::binary(Kind kind, Operator op, ExpressionPtr a,
                                       ExpressionPtr b) const {
  auto out = make(tokens_, kind, std::move(a));
  out->operators.push_back(op);
  adopt(tokens_, *out, std::move(b));
  return out;
}

ExpressionPtr ExpressionParser::expression() {
  const TokenCursor::Nested nested(tokens_);
  auto out = or_expression();
  while (tokens_.take_name("if")) {
    auto chosen = make(tokens_, Kind::kConditional, std::move(out));
    adopt(tokens_, *chosen, or_expression());
    adopt(tokens_, *chosen, tokens_.take_name("else") ? expression() : nullptr);
    out = std::move(chosen);
  }
  return out;
}

/// One expression, or a tuple of several without parentheses.
ExpressionPtr ExpressionParser::list_or_expression(bool conditional) {
  auto first = conditional ? expression() : or_expression();
  if (!tokens_.is_operator(",")) return first;
  auto tuple = make(tokens_, Kind::kTuple, std::move(first));
  while (tokens_.take_operator(",")) {
    const auto kind = tokens_.current().kind;
    if (kind == Token::Kind::kBlockEnd || kind == Token::Kind::kOutputEnd ||
        tokens_.is_operator("="))
      break;
    adopt(tokens_, *tuple, conditional ? expression() : or_expression());
  }
  return tuple;
}

ExpressionPtr ExpressionParser::or_expression() {
  auto out = and_expression();
  while (tokens_.take_name("or"))
    out = binary(Kind::kLogic, Operator::kOr, std::move(out), and_expression());
  return out;
}

ExpressionPtr ExpressionParser::and_expression() {
  auto out = not_expression();
  while (tokens_.take_name("and"))
    out = binary(Kind::kLogic, Operator::kAnd, std::move(out), not_expression());
  return out;
}

ExpressionPtr ExpressionParser::not_expression() {
  if (!tokens_.take_name("not")) return comparison();
  const TokenCursor::Nested nested(tokens_);
  auto out = make(tokens_, Kind::kLogic, not_expression());
  out->operators.push_back(Operator::kNot);
  return out;
}

ExpressionPtr ExpressionParser::comparison() {
  auto out = sum();
  ExpressionPtr chain;
  for (;;) {
    Operator op;
    if (tokens_.take_operator("==")) {
      op = Operator::kEqual;
    } else if (tokens_.take_operator("!=")) {
      op = Operator::kNotEqual;
    } else if (tokens_.take_operator("<=")) {
      op = Operator::kLessEqual;
    } else if (tokens_.take_operator(">=")) {
      op = Operator::kGreaterEqual;
    } else if (tokens_.take_operator("<")) {
      op = Operator::kLess;
    } else if (tokens_.take_operator(">")) {
      op = Operator::kGreater;
    } else if (tokens_.take_name("in")) {
      op = Operator::kIn;
    } else if (tokens_.is_name("not") && tokens_.next().kind == Token::Kind::kName &&
               tokens_.next().value == "in") {
      tokens_.skip(2);
      op = Operator::kNotIn;
    } else {
      return chain == nullptr ? std::move(out) : std::move(chain);
    }
    if (chain == nullptr) chain = make(tokens_, Kind::kCompare, std::move(out));
    chain->operators.push_back(op);
    adopt(tokens_, *chain, sum());
  }
}

ExpressionPtr ExpressionParser::sum() {
  auto out = concatenation();
  for (;;) {
    if (tokens_.take_operator("+")) {
      out = binary(Kind::kBinary, Operator::kAdd, std::move(out), concatenation());
    } else if (tokens_.take_operator("-")) {
      out = binary(Kind::kBinary, Operator::kSubtract, std::move(out), concatenation());
    } else {
      return out;
    }
  }
}

ExpressionPtr ExpressionParser::concatenation() {
  auto out = product();
  while (tokens_.take_operator("~"))
    out = binary(Kind::kBinary, Operator::kConcat, std::move(out), product());
  return out;
}

ExpressionPtr ExpressionParser::product() {
  auto out = power();
  for (;;) {
    if (tokens_.take_operator("*")) {
      out = binary(Kind::kBinary, Operator::kMultiply, std::move(out), power());
    } else if (tokens_.take_operator("//")) {
      out = binary(Kind::kBinary, Operator::kFloorDivide, std::move(out), power());
    } else if (tokens_.take_operator("/")) {
      out = binary(Kind::kBinary, Operator::kDivide, std::move(out), power());
    } else if (tokens_.take_operator("%")) {
      out = binary(Kind::kBinary, Operator::kModulo, std::move(out), power());
    } else {
      return out;
    }
  }
}

ExpressionPtr ExpressionParser::power() {
  auto out = unary(true);
  while (tokens_.take_operator("**"))
    out = binary(Kind::kBinary, Operator::kPower, std::move(out), unary(true));
  return out;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const TokenCursor::Nested nested(tokens_);
  ExpressionPtr out;
  if (tokens_.is_operator("-") || tokens_.is_operator("+")) {
    const auto op = tokens_.is_operator("-") ? Operator::kNegate : Operator::kPlus;
    tokens_.skip();
    out = make(tokens_, Kind::kUnary, unary(false));
    out->operators.push_back(op);
  } else {
    out = terms_.primary();
  }
  out = postfix(std::move(out));
  return with_filters ? filters(std::move(out)) : std::move(out);
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr inner) {
  for (;;) {
    if (tokens_.take_operator(".")) {
      auto out = make(tokens_, Kind::kAttribute, std::move(inner));
      if (tokens_.current().kind == Token::Kind::kInteger) {
        out->kind = Kind::kIndex;
        adopt(tokens_, *out, terms_.primary());
      } else {
        out->name = tokens_.expect_name("the name of an attribute");
      }
      inner = std::move(out);
    } else if (tokens_.is_operator("[")) {
      inner = terms_.subscript(std::move(inner));
    } else if (tokens_.is_operator("(")) {
      inner = terms_.call(std::move(inner));
    } else {
      return inner;
    }
  }
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr inner) {
  for (;;) {
    if (tokens_.take_operator("|")) {
      inner = filter(std::move(inner));
    } else if (tokens_.take_name("is")) {
      inner = terms_.test(std::move(inner));
    } else if (tokens_.is_operator("(")) {
      inner = terms_.call(std::move(inner));
    } else {
      return inner;
    }
  }
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr inner) {
  auto out = make(tokens_, Kind::kFilter, std::move(inner));
  out->line = tokens_.current().line;
  out->name = tokens_.expect_name("the name of a filter");
  while (tokens_.take_operator(".")) out->name += "." + tokens_.expect_name("the name of a filter");
  if (tokens_.is_operator("("))
    terms_.arguments(*out);  // one that we do not know may never be reached
  return out;
}

}  // namespace pith::chat
