#include "chat/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pith::chat {

Nodes Parser::run() { return body({}, ""); }

std::unique_ptr<Node> Parser::node(Node::Kind kind) const {
  auto out = std::make_unique<Node>();
  out->kind = kind;
  out->line = tokens_.current().line;
  return out;
}

/// Everything up to a tag that begins with one of `ends`; its name is then the current token. With
/// no ends: up to the template's end.
Nodes Parser::body(const Words& ends, const char* opened_by) {
  const TokenCursor::Nested nested(tokens_);
  Nodes out;
  for (;;) {
    const Token& token = tokens_.current();
    if (token.kind == Token::Kind::kEnd) {
      if (!ends.empty()) tokens_.corrupt(fmt::format("'{}' without '{}'", opened_by, ends.back()));
      return out;
    }
    if (token.kind == Token::Kind::kText) {
      out.push_back(node(Node::Kind::kText));
      out.back()->text = Text(token.value, Origin::kTemplate);
      tokens_.skip();
    } else if (token.kind == Token::Kind::kOutputBegin) {
      out.push_back(node(Node::Kind::kOutput));
      tokens_.skip();
      out.back()->expression = expressions_.list_or_expression(true);
      if (tokens_.current().kind != Token::Kind::kOutputEnd)
        tokens_.corrupt(fmt::format("expected the end }}}}, found {}", tokens_.found()));
      tokens_.skip();
    } else {
      tokens_.skip();  // {%
      if (tokens_.current().kind == Token::Kind::kName &&
          std::find(ends.begin(), ends.end(), tokens_.current().value) != ends.end())
        return out;
      out.push_back(statement());
    }
  }
}

std::unique_ptr<Node> Parser::statement() {
  const std::string tag = tokens_.expect_name("the name of a tag");
  if (tag == "if") return if_statement();
  if (tag == "for") return for_statement();
  if (tag == "set") return set_statement();
  if (tag == "macro") return macro_statement();
  if (tag == "filter") return filter_statement();
  if (tag == "call") return call_statement();
  if (tag == "with") return with_statement();
  if (tag == "generation") {
    auto out = node(Node::Kind::kScope);
    tokens_.expect_block_end();
    out->body = body({"endgeneration"}, "generation");
    tokens_.skip();
    tokens_.expect_block_end();
    return out;
  }
  if (tag == "break" || tag == "continue") {
    if (breakable_ == 0) tokens_.corrupt(fmt::format("'{}' outside of a loop", tag));
    auto out = node(tag == "break" ? Node::Kind::kBreak : Node::Kind::kContinue);
    tokens_.expect_block_end();
    return out;
  }
  if (tag == "block") return block_statement();
  if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
    auto out = node(Node::Kind::kAnother);
    out->member = tag;
    while (tokens_.current().kind != Token::Kind::kBlockEnd &&
           tokens_.current().kind != Token::Kind::kEnd)
      tokens_.skip();
    tokens_.expect_block_end();
    return out;
  }
  static constexpr std::string_view kEnds[] = {"else",      "elif",          "endif",   "endfor",
                                               "endset",    "endraw",        "endcall", "endmacro",
                                               "endfilter", "endgeneration", "endwith", "endblock"};
  if (std::find(std::begin(kEnds), std::end(kEnds), tag) != std::end(kEnds))
    tokens_.corrupt(fmt::format("'{}' closes nothing", tag));
  tokens_.back();
  tokens_.unsupported(
      fmt::format("the tag '{}'; supported: if, for, set, macro, call, filter, with, block, "
                  "generation, raw, break, continue",
                  tag));
}

/// Behind "if" or "elif"; takes everything up to endif.
std::unique_ptr<Node> Parser::if_statement() {
  const TokenCursor::Nested nested(tokens_);
  auto out = node(Node::Kind::kIf);
  out->expression = expressions_.expression();
  tokens_.expect_block_end();
  out->body = body({"elif", "else", "endif"}, "if");
  if (tokens_.take_name("elif")) {
    out->otherwise.push_back(if_statement());
    return out;
  }
  if (tokens_.take_name("else")) {
    tokens_.expect_block_end();
    out->otherwise = body({"endif"}, "else");
  }
  tokens_.skip();  // endif
  tokens_.expect_block_end();
  return out;
}

std::unique_ptr<Node> Parser::for_statement() {
  auto out = node(Node::Kind::kFor);
  out->targets = targets_.targets("in");
  if (!tokens_.take_name("in"))
    tokens_.corrupt(fmt::format("expected 'in', found {}", tokens_.found()));
  out->expression = expressions_.list_or_expression(false);
  if (tokens_.take_name("if")) out->condition = expressions_.expression();
  out->recursive = tokens_.take_name("recursive");
  tokens_.expect_block_end();
  ++breakable_;
  out->body = body({"else", "endfor"}, "for");
  --breakable_;
  if (tokens_.take_name("else")) {
    tokens_.expect_block_end();
    out->otherwise = body({"endfor"}, "else");
  }
  tokens_.skip();  // endfor
  tokens_.expect_block_end();
  return out;
}

/// The filters behind "|", over a name "" that stands for a body; null if there are none.
ExpressionPtr Parser::body_filters() {
  if (!tokens_.is_operator("|")) return nullptr;
  auto text = make(tokens_, Expression::Kind::kName);
  return expressions_.filters(std::move(text));
}

/// A body whose output is a value, and its end. A break in it would leave half a value.
Nodes Parser::closed_body(std::string_view end, const char* opened_by) {
  const int outer = std::exchange(breakable_, 0);
  Nodes out = body({end}, opened_by);
  breakable_ = outer;
  tokens_.skip();
  tokens_.expect_block_end();
  return out;
}

std::unique_ptr<Node> Parser::set_statement() {
  auto out = node(Node::Kind::kSet);
  const bool dotted = tokens_.next().kind == Token::Kind::kOperator && tokens_.next().value == ".";
  if (dotted) {
    out->names.push_back(tokens_.expect_name("a name"));
    tokens_.expect_operator(".");
    out->member = tokens_.expect_name("the name of a member");
  } else {
    out->targets = targets_.targets("=");
  }
  if (tokens_.take_operator("=")) {
    out->expression = expressions_.list_or_expression(true);
    tokens_.expect_block_end();
    return out;
  }
  if (!dotted && (out->targets.size() > 1 || !out->targets[0].parts.empty()))
    tokens_.corrupt(fmt::format("expected '=', found {}", tokens_.found()));
  out->kind = Node::Kind::kSetBlock;
  out->expression = body_filters();
  tokens_.expect_block_end();
  out->body = closed_body("endset", "set");
  return out;
}

std::unique_ptr<Node> Parser::macro_statement() {
  auto out = node(Node::Kind::kMacro);
  out->names.push_back(targets_.name_to_set());
  targets_.parameters(*out);
  tokens_.expect_block_end();
  Node* const outer = terms_.enter(out.get());
  out->body = closed_body("endmacro", "macro");
  terms_.enter(outer);
  return out;
}

std::unique_ptr<Node> Parser::call_statement() {
  auto out = node(Node::Kind::kCall);
  out->names.emplace_back("caller");
  if (tokens_.is_operator("(")) targets_.parameters(*out);
  out->expression = expressions_.unary(false);
  if (out->expression->kind != Expression::Kind::kCall)
    tokens_.corrupt("the tag 'call' needs a call of a macro");
  tokens_.expect_block_end();
  Node* const outer = terms_.enter(out.get());
  out->body = closed_body("endcall", "call");
  terms_.enter(outer);
  return out;
}

std::unique_ptr<Node> Parser::with_statement() {
  auto out = node(Node::Kind::kWith);
  while (tokens_.current().kind != Token::Kind::kBlockEnd) {
    if (!out->targets.empty()) tokens_.expect_operator(",");
    out->targets.push_back(targets_.target());
    tokens_.expect_operator("=");
    out->defaults.push_back(expressions_.expression());
  }
  tokens_.expect_block_end();
  out->body = body({"endwith"}, "with");
  tokens_.skip();
  tokens_.expect_block_end();
  return out;
}

/// Nothing extends a chat template, so a block is its body.
std::unique_ptr<Node> Parser::block_statement() {
  auto out = node(Node::Kind::kScope);
  const std::string name = tokens_.expect_name("the name of a block");
  while (tokens_.take_name("scoped") || tokens_.take_name("required")) {
  }
  tokens_.expect_block_end();
  const int outer = std::exchange(breakable_, 0);
  out->body = body({"endblock"}, "block");
  breakable_ = outer;
  tokens_.skip();
  if (tokens_.current().kind != Token::Kind::kBlockEnd && !tokens_.take_name(name))
    tokens_.corrupt(
        fmt::format("expected the end of the block '{}', found {}", name, tokens_.found()));
  tokens_.expect_block_end();
  return out;
}

std::unique_ptr<Node> Parser::filter_statement() {
  auto out = node(Node::Kind::kFilter);
  auto text = make(tokens_, Expression::Kind::kName);
  out->expression = expressions_.filters(expressions_.filter(std::move(text)));
  tokens_.expect_block_end();
  out->body = closed_body("endfilter", "filter");
  return out;
}

Nodes parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace pith::chat
