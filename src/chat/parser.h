#pragma once
// The statements of a template by recursive descent.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/expression_parser.h"
#include "chat/lexer.h"
#include "chat/library.h"
#include "chat/syntax.h"
#include "chat/target_parser.h"
#include "chat/term_parser.h"
#include "chat/token_cursor.h"

namespace pith::chat {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens), name) {}
  Nodes run();

 private:
  using Words = std::vector<std::string_view>;

  std::unique_ptr<Node> node(Node::Kind kind) const;
  Nodes body(const Words& ends, const char* opened_by);
  Nodes closed_body(std::string_view end, const char* opened_by);
  std::unique_ptr<Node> statement();
  std::unique_ptr<Node> if_statement();
  std::unique_ptr<Node> for_statement();
  std::unique_ptr<Node> set_statement();
  std::unique_ptr<Node> macro_statement();
  std::unique_ptr<Node> filter_statement();
  std::unique_ptr<Node> block_statement();
  std::unique_ptr<Node> call_statement();
  std::unique_ptr<Node> with_statement();
  ExpressionPtr body_filters();

  TokenCursor tokens_;
  TermParser terms_{tokens_, expressions_};
  ExpressionParser expressions_{tokens_, terms_};
  TargetParser targets_{tokens_, expressions_};
  int breakable_ = 0;  // loops that a break here would end
};

}  // namespace pith::chat
