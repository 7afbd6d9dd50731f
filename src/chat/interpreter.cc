#include "chat/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "chat/levels.h"

namespace pith::chat {

Text Interpreter::run(const Nodes& nodes) {
  Text out;
  out_ = &out;
  execute(nodes);
  return out;
}

Interpreter::Flow Interpreter::execute(const Nodes& nodes) {
  for (const auto& node : nodes) {
    const Flow flow = execute(*node);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Node& node) {
  const Level level(*this);
  rt_.line = node.line;
  rt_.charge(1);
  switch (node.kind) {
    case Node::Kind::kText:
      rt_.charge(node.text.size() / 64);
      rt_.check_size(out_->size() + node.text.size());
      out_->append(node.text);
      break;
    case Node::Kind::kOutput: print(evaluate(*node.expression)); break;
    case Node::Kind::kIf:
      return execute(truth(evaluate(*node.expression)) ? node.body : node.otherwise);
    case Node::Kind::kFor: loop(node); break;
    case Node::Kind::kSet: set(node, evaluate(*node.expression)); break;
    case Node::Kind::kSetBlock: set(node, body_text(node)); break;
    case Node::Kind::kMacro:
      scopes_.back().insert_or_assign(node.names[0], Value(Function{&node, node.names[0]}));
      break;
    case Node::Kind::kFilter: print(body_text(node)); break;
    case Node::Kind::kScope: {
      scopes_.emplace_back();
      const Flow flow = execute(node.body);
      scopes_.pop_back();
      return flow;
    }
    case Node::Kind::kBreak: return Flow::kBreak;
    case Node::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::print(const Value& value) {
  rt_.charge_walk(value);
  const Text text = to_text(value);
  rt_.check_size(out_->size() + text.size());
  out_->append(text);
}

Value Interpreter::body_text(const Node& node) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  scopes_.emplace_back();
  execute(node.body);
  scopes_.pop_back();
  out_ = outer;
  Value value = rt_.text(std::move(text));
  if (node.expression == nullptr) return value;
  Value hidden = std::exchange(body_, std::move(value));
  value = evaluate(*node.expression);
  body_ = std::move(hidden);
  return value;
}

void Interpreter::set(const Node& node, Value value) {
  if (node.member.empty()) return assign(node.names, value);
  const Value target = look_up(node.names[0]);
  Namespace* const space = target.space();
  if (space == nullptr)
    rt_.fail(fmt::format("'{}' is {}; only members of a namespace can be set", node.names[0],
                         describe_type(target)));
  if (value.space() != nullptr) rt_.fail("a namespace in a namespace", ErrorCode::kUnsupported);
  space->members.insert_or_assign(node.member, std::move(value));
}

void Interpreter::assign(const std::vector<std::string>& names, const Value& value) {
  Scope& scope = scopes_.back();
  if (names.size() == 1) {
    scope.insert_or_assign(names[0], value);
    return;
  }
  const Values parts = elements(rt_, value);
  if (parts.size() != names.size())
    rt_.fail(fmt::format("{} values for {} names", parts.size(), names.size()));
  for (size_t i = 0; i < names.size(); ++i) scope.insert_or_assign(names[i], parts[i]);
}

void Interpreter::loop(const Node& node) {
  Values items = elements(rt_, evaluate(*node.expression));
  if (node.condition != nullptr) {
    Values kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      assign(node.names, item);
      const bool keep = truth(evaluate(*node.condition));
      scopes_.pop_back();
      if (keep) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    scopes_.emplace_back();
    execute(node.otherwise);
    scopes_.pop_back();
    return;
  }
  rt_.charge(items.size());
  const auto all = std::make_shared<const List>(List::Kind::kList, std::move(items));
  for (size_t i = 0; i < all->items.size(); ++i) {
    const auto state = std::make_shared<const Loop>(Loop{all, i});
    if (turn(node, state) == Flow::kBreak) break;
  }
}

Interpreter::Flow Interpreter::turn(const Node& node, const std::shared_ptr<const Loop>& loop) {
  scopes_.emplace_back();
  scopes_.back().insert_or_assign("loop", Value(loop));
  assign(node.names, loop->items->items[loop->index]);
  const Flow flow = execute(node.body);
  scopes_.pop_back();
  return flow;
}

Value Interpreter::look_up(const std::string& name) {
  for (size_t i = scopes_.size(); i > 0;) {
    --i;
    if (i < frame_) i = 0;  // what called the macro is not seen from it
    const auto found = scopes_[i].find(name);
    if (found != scopes_[i].end()) return found->second;
  }
  if (find_global(name) != nullptr) return Value(Function{nullptr, name});
  return Value(Undefined{std::make_shared<const std::string>(name)});
}

Value Interpreter::call_macro(const Node& macro, Values positional,
                              std::vector<std::pair<std::string, Value>> named) {
  if (macros_ >= kMaxNesting)
    rt_.fail(fmt::format("macros call each other more than {} deep", kMaxNesting));
  const size_t count = macro.names.size() - 1;
  if (positional.size() > count)
    rt_.fail(fmt::format("the macro '{}' takes {} arguments, not {}", macro.names[0], count,
                         positional.size()));
  const size_t outer_frame = std::exchange(frame_, scopes_.size());
  const int line = rt_.line;
  scopes_.emplace_back();
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.names[i + 1];
    const auto given = std::find_if(named.begin(), named.end(),
                                    [&](const auto& item) { return item.first == name; });
    Value value(Undefined{std::make_shared<const std::string>(name)});
    if (given != named.end()) {
      if (i < positional.size()) rt_.fail(fmt::format("the argument '{}' is given twice", name));
      value = std::move(given->second);
      named.erase(given);
    } else if (i < positional.size()) {
      value = std::move(positional[i]);
    } else if (macro.defaults[i] != nullptr) {
      value = evaluate(*macro.defaults[i]);
    }
    scopes_.back().insert_or_assign(name, std::move(value));
  }
  if (!named.empty())
    rt_.fail(fmt::format("the macro '{}' has no parameter '{}'", macro.names[0], named[0].first));
  Text text;
  Text* const outer = std::exchange(out_, &text);
  ++macros_;
  execute(macro.body);
  --macros_;
  out_ = outer;
  scopes_.pop_back();
  frame_ = outer_frame;
  rt_.line = line;
  return rt_.text(std::move(text));
}

}  // namespace pith::chat
