#pragma once
// Recursive descent over the tokens of a template: statements (parser.cc),
// expressions (parser_expressions.cc) and their terms (parser_terms.cc).

#include <string>
#include <string_view>
#include <vector>

#include "chat/lexer.h"
#include "chat/library.h"
#include "chat/syntax.h"

namespace pith::chat {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}
  Nodes run();

 private:
  using Words = std::vector<std::string_view>;

  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is_name(std::string_view word) const;
  bool is_operator(std::string_view sign) const;
  bool take_name(std::string_view word);
  bool take_operator(std::string_view sign);
  void expect_operator(std::string_view sign);
  void expect_block_end();
  std::string expect_name(const char* what);
  std::string found() const;
  [[noreturn]] void corrupt(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;

  // Statements.
  Nodes body(const Words& ends, const char* opened_by);
  std::unique_ptr<Node> statement();
  std::unique_ptr<Node> make(Node::Kind kind) const;
  std::unique_ptr<Node> if_statement();
  std::unique_ptr<Node> for_statement();
  std::unique_ptr<Node> set_statement();
  std::unique_ptr<Node> macro_statement();
  std::unique_ptr<Node> filter_statement();
  std::string name_to_set();
  Target target();
  std::vector<Target> targets(std::string_view end);
  std::unique_ptr<Node> call_statement();
  std::unique_ptr<Node> with_statement();
  void parameters(Node& macro);
  ExpressionPtr body_filters();
  Nodes closed_body(std::string_view end, const char* opened_by);

  // Expressions, loosest first.
  ExpressionPtr expression();
  ExpressionPtr list_or_expression(bool conditional);
  ExpressionPtr or_expression();
  ExpressionPtr and_expression();
  ExpressionPtr not_expression();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr postfix(ExpressionPtr inner);
  ExpressionPtr filters(ExpressionPtr inner);
  ExpressionPtr filter(ExpressionPtr inner);
  ExpressionPtr test(ExpressionPtr inner);
  bool begins_argument() const;
  ExpressionPtr primary();
  ExpressionPtr parenthesised();
  ExpressionPtr list_literal();
  ExpressionPtr dict_literal();
  ExpressionPtr subscript(ExpressionPtr inner);
  ExpressionPtr call(ExpressionPtr inner);
  void arguments(Expression& call);

  ExpressionPtr make(Expression::Kind kind) const;
  ExpressionPtr make(Expression::Kind kind, ExpressionPtr child) const;
  ExpressionPtr binary(Expression::Kind kind, Operator op, ExpressionPtr a, ExpressionPtr b) const;
  void adopt(Expression& parent, ExpressionPtr child) const;

  /// Counts nesting while it lives.
  class Nested;

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0;
  int breakable_ = 0;      // loops that a break here would end
  Node* macro_ = nullptr;  // the innermost
};

class Parser::Nested {
 public:
  explicit Nested(Parser& parser) : parser_(parser) {
    if (++parser_.nesting_ > kMaxNesting)
      parser_.unsupported("more than " + std::to_string(kMaxNesting) + " levels of nesting");
  }
  ~Nested() { --parser_.nesting_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  Parser& parser_;
};

}  // namespace pith::chat
