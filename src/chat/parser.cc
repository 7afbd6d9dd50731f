#include "chat/parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace pith::chat {

Nodes Parser::run() { return body({}, ""); }

// ---- Tokens ----

bool Parser::is_name(std::string_view word) const {
  return current().kind == Token::Kind::kName && current().value == word;
}

bool Parser::is_operator(std::string_view sign) const {
  return current().kind == Token::Kind::kOperator && current().value == sign;
}

bool Parser::take_name(std::string_view word) {
  const bool found = is_name(word);
  if (found) ++at_;
  return found;
}

bool Parser::take_operator(std::string_view sign) {
  const bool found = is_operator(sign);
  if (found) ++at_;
  return found;
}

std::string Parser::found() const {
  const Token& token = current();
  switch (token.kind) {
    case Token::Kind::kOutputEnd: return "the end }}";
    case Token::Kind::kBlockEnd: return "the end %}";
    case Token::Kind::kEnd: return "the end of the template";
    case Token::Kind::kString: return "a string";
    default: return fmt::format("'{}'", token.value);
  }
}

void Parser::expect_operator(std::string_view sign) {
  if (!take_operator(sign)) corrupt(fmt::format("expected '{}', found {}", sign, found()));
}

void Parser::expect_block_end() {
  if (current().kind != Token::Kind::kBlockEnd)
    corrupt(fmt::format("expected the end %}} of the tag, found {}", found()));
  ++at_;
}

std::string Parser::expect_name(const char* what) {
  if (current().kind != Token::Kind::kName)
    corrupt(fmt::format("expected {}, found {}", what, found()));
  return tokens_[at_++].value;
}

void Parser::corrupt(const std::string& what) const {
  fail_at(ErrorCode::kCorrupt, name_, current().line, what);
}

void Parser::unsupported(const std::string& what) const {
  fail_at(ErrorCode::kUnsupported, name_, current().line, "not supported: " + what);
}

// ---- Statements ----

std::unique_ptr<Node> Parser::make(Node::Kind kind) const {
  auto out = std::make_unique<Node>();
  out->kind = kind;
  out->line = current().line;
  return out;
}

/// Everything up to a tag that begins with one of `ends`; its name is then the current token. With
/// no ends: up to the template's end.
Nodes Parser::body(const Words& ends, const char* opened_by) {
  const Nested nested(*this);
  Nodes out;
  for (;;) {
    const Token& token = current();
    if (token.kind == Token::Kind::kEnd) {
      if (!ends.empty()) corrupt(fmt::format("'{}' without '{}'", opened_by, ends.back()));
      return out;
    }
    if (token.kind == Token::Kind::kText) {
      out.push_back(make(Node::Kind::kText));
      out.back()->text = Text(token.value, Origin::kTemplate);
      ++at_;
    } else if (token.kind == Token::Kind::kOutputBegin) {
      out.push_back(make(Node::Kind::kOutput));
      ++at_;
      out.back()->expression = list_or_expression(true);
      if (current().kind != Token::Kind::kOutputEnd)
        corrupt(fmt::format("expected the end }}}}, found {}", found()));
      ++at_;
    } else {
      ++at_;  // {%
      if (current().kind == Token::Kind::kName &&
          std::find(ends.begin(), ends.end(), current().value) != ends.end())
        return out;
      out.push_back(statement());
    }
  }
}

std::unique_ptr<Node> Parser::statement() {
  const std::string tag = expect_name("the name of a tag");
  if (tag == "if") return if_statement();
  if (tag == "for") return for_statement();
  if (tag == "set") return set_statement();
  if (tag == "macro") return macro_statement();
  if (tag == "filter") return filter_statement();
  if (tag == "call") return call_statement();
  if (tag == "with") return with_statement();
  if (tag == "generation") {
    auto out = make(Node::Kind::kScope);
    expect_block_end();
    out->body = body({"endgeneration"}, "generation");
    ++at_;
    expect_block_end();
    return out;
  }
  if (tag == "break" || tag == "continue") {
    if (breakable_ == 0) corrupt(fmt::format("'{}' outside of a loop", tag));
    auto out = make(tag == "break" ? Node::Kind::kBreak : Node::Kind::kContinue);
    expect_block_end();
    return out;
  }
  static constexpr std::string_view kEnds[] = {"else",     "elif",      "endif",        "endfor",
                                               "endset",   "endraw",    "endcall",      "endwith",
                                               "endmacro", "endfilter", "endgeneration"};
  if (std::find(std::begin(kEnds), std::end(kEnds), tag) != std::end(kEnds))
    corrupt(fmt::format("'{}' closes nothing", tag));
  --at_;
  unsupported(
      fmt::format("the tag '{}'; supported: if, for, set, macro, call, filter, with, generation, "
                  "raw, break, continue",
                  tag));
}

/// Behind "if" or "elif"; takes everything up to endif.
std::unique_ptr<Node> Parser::if_statement() {
  const Nested nested(*this);
  auto out = make(Node::Kind::kIf);
  out->expression = expression();
  expect_block_end();
  out->body = body({"elif", "else", "endif"}, "if");
  if (take_name("elif")) {
    out->otherwise.push_back(if_statement());
    return out;
  }
  if (take_name("else")) {
    expect_block_end();
    out->otherwise = body({"endif"}, "else");
  }
  ++at_;  // endif
  expect_block_end();
  return out;
}

/// A name that the template sets.
std::string Parser::name_to_set() {
  std::string name = expect_name("a name");
  for (const char* word : {"true", "false", "none", "True", "False", "None", "loop", "not", "if",
                           "else", "and", "or", "in", "is"}) {
    if (name == word) corrupt(fmt::format("'{}' cannot be set", name));
  }
  return name;
}

/// A name, or targets in parentheses.
Target Parser::target() {
  const Nested nested(*this);
  if (!take_operator("(")) return {name_to_set(), {}};
  std::vector<Target> parts = targets(")");
  expect_operator(")");
  if (parts.size() == 1 && tokens_[at_ - 2].value != ",") return std::move(parts[0]);
  return {"", std::move(parts)};
}

/// One or more, up to the sign or the word `end`.
std::vector<Target> Parser::targets(std::string_view end) {
  std::vector<Target> out;
  do {
    if (!out.empty() && (is_operator(end) || is_name(end))) break;
    out.push_back(target());
  } while (take_operator(","));
  return out;
}

std::unique_ptr<Node> Parser::for_statement() {
  auto out = make(Node::Kind::kFor);
  out->targets = targets("in");
  if (!take_name("in")) corrupt(fmt::format("expected 'in', found {}", found()));
  out->expression = list_or_expression(false);
  if (take_name("if")) out->condition = expression();
  out->recursive = take_name("recursive");
  expect_block_end();
  ++breakable_;
  out->body = body({"else", "endfor"}, "for");
  --breakable_;
  if (take_name("else")) {
    expect_block_end();
    out->otherwise = body({"endfor"}, "else");
  }
  ++at_;  // endfor
  expect_block_end();
  return out;
}

/// The filters behind "|", over a name "" that stands for a body; null if there are none.
ExpressionPtr Parser::body_filters() {
  if (!is_operator("|")) return nullptr;
  auto text = make(Expression::Kind::kName);
  return filters(std::move(text));
}

/// A body whose output is a value, and its end. A break in it would leave half a value.
Nodes Parser::closed_body(std::string_view end, const char* opened_by) {
  const int outer = std::exchange(breakable_, 0);
  Nodes out = body({end}, opened_by);
  breakable_ = outer;
  ++at_;
  expect_block_end();
  return out;
}

std::unique_ptr<Node> Parser::set_statement() {
  auto out = make(Node::Kind::kSet);
  const bool dotted = next().kind == Token::Kind::kOperator && next().value == ".";
  if (dotted) {
    out->names.push_back(expect_name("a name"));
    expect_operator(".");
    out->member = expect_name("the name of a member");
  } else {
    out->targets = targets("=");
  }
  if (take_operator("=")) {
    out->expression = list_or_expression(true);
    expect_block_end();
    return out;
  }
  if (!dotted && (out->targets.size() > 1 || !out->targets[0].parts.empty()))
    corrupt(fmt::format("expected '=', found {}", found()));
  out->kind = Node::Kind::kSetBlock;
  out->expression = body_filters();
  expect_block_end();
  out->body = closed_body("endset", "set");
  return out;
}

/// "(name, name = default, ...)" of a macro, behind its name.
void Parser::parameters(Node& macro) {
  expect_operator("(");
  while (!is_operator(")")) {
    if (macro.names.size() > 1) expect_operator(",");
    if (is_operator(")")) break;
    macro.names.push_back(name_to_set());
    macro.defaults.push_back(take_operator("=") ? expression() : nullptr);
    const bool bare = macro.defaults.back() == nullptr;
    if (bare && macro.defaults.size() > 1 && macro.defaults[macro.defaults.size() - 2] != nullptr)
      corrupt("a parameter without a default after one with a default");
  }
  expect_operator(")");
}

std::unique_ptr<Node> Parser::macro_statement() {
  auto out = make(Node::Kind::kMacro);
  out->names.push_back(name_to_set());
  parameters(*out);
  expect_block_end();
  Node* const outer = std::exchange(macro_, out.get());
  out->body = closed_body("endmacro", "macro");
  macro_ = outer;
  return out;
}

std::unique_ptr<Node> Parser::call_statement() {
  auto out = make(Node::Kind::kCall);
  out->names.emplace_back("caller");
  if (is_operator("(")) parameters(*out);
  out->expression = unary(false);
  if (out->expression->kind != Expression::Kind::kCall)
    corrupt("the tag 'call' needs a call of a macro");
  expect_block_end();
  Node* const outer = std::exchange(macro_, out.get());
  out->body = closed_body("endcall", "call");
  macro_ = outer;
  return out;
}

std::unique_ptr<Node> Parser::with_statement() {
  auto out = make(Node::Kind::kWith);
  while (current().kind != Token::Kind::kBlockEnd) {
    if (!out->targets.empty()) expect_operator(",");
    out->targets.push_back(target());
    expect_operator("=");
    out->defaults.push_back(expression());
  }
  expect_block_end();
  out->body = body({"endwith"}, "with");
  ++at_;
  expect_block_end();
  return out;
}

std::unique_ptr<Node> Parser::filter_statement() {
  auto out = make(Node::Kind::kFilter);
  auto text = make(Expression::Kind::kName);
  out->expression = filters(filter(std::move(text)));
  expect_block_end();
  out->body = closed_body("endfilter", "filter");
  return out;
}

Nodes parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace pith::chat
