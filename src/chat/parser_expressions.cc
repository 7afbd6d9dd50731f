#include <fmt/format.h>

#include "chat/parser.h"

namespace pith::chat {

using Kind = Expression::Kind;

namespace {

// A chain such as a + b + c leans to the left as deep as it is long.
constexpr int kMaxTreeDepth = 250;

}  // namespace

void Parser::adopt(Expression& parent, ExpressionPtr child) const {
  if (child != nullptr) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxTreeDepth)
      unsupported(fmt::format("an expression of more than {} levels", kMaxTreeDepth));
  }
  parent.children.push_back(std::move(child));
}

ExpressionPtr Parser::make(Kind kind) const {
  auto out = std::make_unique<Expression>();
  out->kind = kind;
  out->line = current().line;
  return out;
}

ExpressionPtr Parser::make(Kind kind, ExpressionPtr child) const {
  auto out = make(kind);
  out->line = child->line;
  adopt(*out, std::move(child));
  return out;
}

ExpressionPtr Parser::binary(Kind kind, Operator op, ExpressionPtr a, ExpressionPtr b) const {
  auto out = make(kind, std::move(a));
  out->operators.push_back(op);
  adopt(*out, std::move(b));
  return out;
}

ExpressionPtr Parser::expression() {
  const Nested nested(*this);
  auto out = or_expression();
  while (take_name("if")) {
    auto chosen = make(Kind::kConditional, std::move(out));
    adopt(*chosen, or_expression());
    adopt(*chosen, take_name("else") ? expression() : nullptr);
    out = std::move(chosen);
  }
  return out;
}

/// One expression, or a tuple of several without parentheses.
ExpressionPtr Parser::list_or_expression(bool conditional) {
  auto first = conditional ? expression() : or_expression();
  if (!is_operator(",")) return first;
  auto tuple = make(Kind::kTuple, std::move(first));
  while (take_operator(",")) {
    const auto kind = current().kind;
    if (kind == Token::Kind::kBlockEnd || kind == Token::Kind::kOutputEnd || is_operator("="))
      break;
    adopt(*tuple, conditional ? expression() : or_expression());
  }
  return tuple;
}

ExpressionPtr Parser::or_expression() {
  auto out = and_expression();
  while (take_name("or"))
    out = binary(Kind::kLogic, Operator::kOr, std::move(out), and_expression());
  return out;
}

ExpressionPtr Parser::and_expression() {
  auto out = not_expression();
  while (take_name("and"))
    out = binary(Kind::kLogic, Operator::kAnd, std::move(out), not_expression());
  return out;
}

ExpressionPtr Parser::not_expression() {
  if (!take_name("not")) return comparison();
  const Nested nested(*this);
  auto out = make(Kind::kLogic, not_expression());
  out->operators.push_back(Operator::kNot);
  return out;
}

ExpressionPtr Parser::comparison() {
  auto out = sum();
  ExpressionPtr chain;
  for (;;) {
    Operator op;
    if (take_operator("==")) {
      op = Operator::kEqual;
    } else if (take_operator("!=")) {
      op = Operator::kNotEqual;
    } else if (take_operator("<=")) {
      op = Operator::kLessEqual;
    } else if (take_operator(">=")) {
      op = Operator::kGreaterEqual;
    } else if (take_operator("<")) {
      op = Operator::kLess;
    } else if (take_operator(">")) {
      op = Operator::kGreater;
    } else if (take_name("in")) {
      op = Operator::kIn;
    } else if (is_name("not") && next().kind == Token::Kind::kName && next().value == "in") {
      at_ += 2;
      op = Operator::kNotIn;
    } else {
      return chain == nullptr ? std::move(out) : std::move(chain);
    }
    if (chain == nullptr) chain = make(Kind::kCompare, std::move(out));
    chain->operators.push_back(op);
    adopt(*chain, sum());
  }
}

ExpressionPtr Parser::sum() {
  auto out = concatenation();
  for (;;) {
    if (take_operator("+")) {
      out = binary(Kind::kBinary, Operator::kAdd, std::move(out), concatenation());
    } else if (take_operator("-")) {
      out = binary(Kind::kBinary, Operator::kSubtract, std::move(out), concatenation());
    } else {
      return out;
    }
  }
}

ExpressionPtr Parser::concatenation() {
  auto out = product();
  while (take_operator("~"))
    out = binary(Kind::kBinary, Operator::kConcat, std::move(out), product());
  return out;
}

ExpressionPtr Parser::product() {
  auto out = power();
  for (;;) {
    if (take_operator("*")) {
      out = binary(Kind::kBinary, Operator::kMultiply, std::move(out), power());
    } else if (take_operator("//")) {
      out = binary(Kind::kBinary, Operator::kFloorDivide, std::move(out), power());
    } else if (take_operator("/")) {
      out = binary(Kind::kBinary, Operator::kDivide, std::move(out), power());
    } else if (take_operator("%")) {
      out = binary(Kind::kBinary, Operator::kModulo, std::move(out), power());
    } else {
      return out;
    }
  }
}

ExpressionPtr Parser::power() {
  auto out = unary(true);
  while (take_operator("**"))
    out = binary(Kind::kBinary, Operator::kPower, std::move(out), unary(true));
  return out;
}

ExpressionPtr Parser::unary(bool with_filters) {
  const Nested nested(*this);
  ExpressionPtr out;
  if (is_operator("-") || is_operator("+")) {
    const auto op = is_operator("-") ? Operator::kNegate : Operator::kPlus;
    ++at_;
    out = make(Kind::kUnary, unary(false));
    out->operators.push_back(op);
  } else {
    out = primary();
  }
  out = postfix(std::move(out));
  return with_filters ? filters(std::move(out)) : std::move(out);
}

ExpressionPtr Parser::postfix(ExpressionPtr inner) {
  for (;;) {
    if (take_operator(".")) {
      auto out = make(Kind::kAttribute, std::move(inner));
      if (current().kind == Token::Kind::kInteger) {
        out->kind = Kind::kIndex;
        adopt(*out, primary());
      } else {
        out->name = expect_name("the name of an attribute");
      }
      inner = std::move(out);
    } else if (is_operator("[")) {
      inner = subscript(std::move(inner));
    } else if (is_operator("(")) {
      inner = call(std::move(inner));
    } else {
      return inner;
    }
  }
}

ExpressionPtr Parser::filters(ExpressionPtr inner) {
  for (;;) {
    if (take_operator("|")) {
      inner = filter(std::move(inner));
    } else if (take_name("is")) {
      inner = test(std::move(inner));
    } else if (is_operator("(")) {
      inner = call(std::move(inner));
    } else {
      return inner;
    }
  }
}

ExpressionPtr Parser::filter(ExpressionPtr inner) {
  auto out = make(Kind::kFilter, std::move(inner));
  out->line = current().line;
  out->name = expect_name("the name of a filter");
  while (take_operator(".")) out->name += "." + expect_name("the name of a filter");
  if (is_operator("(")) arguments(*out);  // one that we do not know may never be reached
  return out;
}

/// Whether what follows a test's name is its argument, by Jinja2's rule.
bool Parser::begins_argument() const {
  switch (current().kind) {
    case Token::Kind::kName:
      return !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is") &&
             !is_name("if") && !is_name("in") && !is_name("not") && !is_name("recursive");
    case Token::Kind::kString:
    case Token::Kind::kInteger:
    case Token::Kind::kFloat: return true;
    default: return is_operator("[") || is_operator("{");
  }
}

ExpressionPtr Parser::test(ExpressionPtr inner) {
  const bool negated = take_name("not");
  auto out = make(Kind::kTest, std::move(inner));
  out->line = current().line;
  out->name = expect_name("the name of a test");
  if (is_operator("(")) {
    arguments(*out);
  } else if (begins_argument()) {
    adopt(*out, postfix(primary()));
  }
  if (!negated) return out;
  auto opposite = make(Kind::kLogic, std::move(out));
  opposite->operators.push_back(Operator::kNot);
  return opposite;
}

}  // namespace pith::chat
