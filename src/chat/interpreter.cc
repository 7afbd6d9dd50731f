#include "chat/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

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
    case Node::Kind::kFor: loop(node, elements(rt_, evaluate(*node.expression)), 1); break;
    case Node::Kind::kSet: set(node, evaluate(*node.expression)); break;
    case Node::Kind::kSetBlock: set(node, body_text(node)); break;
    case Node::Kind::kMacro: scopes_.back().insert_or_assign(node.names[0], macro(node)); break;
    case Node::Kind::kCall: call_with_caller(node); break;
    case Node::Kind::kWith: with(node); break;
    case Node::Kind::kFilter: print(body_text(node)); break;
    case Node::Kind::kScope: {
      scopes_.emplace_back();
      const Flow flow = execute(node.body);
      scopes_.pop_back();
      return flow;
    }
    case Node::Kind::kAnother:
      rt_.fail(fmt::format("not supported: the tag '{}': there is no other template", node.member),
               ErrorCode::kUnsupported);
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
  Value value = rt_.text(captured([&] {
    scopes_.emplace_back();
    execute(node.body);
    scopes_.pop_back();
  }));
  if (node.expression == nullptr) return value;
  Value hidden = std::exchange(body_, std::move(value));
  value = evaluate(*node.expression);
  body_ = std::move(hidden);
  return value;
}

void Interpreter::set(const Node& node, Value value) {
  if (node.member.empty()) return assign(node.targets, value);
  const Value target = look_up(node.names[0]);
  Namespace* const space = target.space();
  if (space == nullptr)
    rt_.fail(fmt::format("'{}' is {}; only members of a namespace can be set", node.names[0],
                         describe_type(target)));
  if (extent_of(value).spaces) rt_.fail("a namespace in a namespace", ErrorCode::kUnsupported);
  space->members.insert_or_assign(node.member, std::move(value));
}

void Interpreter::assign(const std::vector<Target>& targets, const Value& value) {
  if (targets.size() == 1) return assign(targets[0], value);
  const Values parts = elements(rt_, value);
  if (parts.size() != targets.size())
    rt_.fail(fmt::format("{} values for {} names", parts.size(), targets.size()));
  for (size_t i = 0; i < targets.size(); ++i) assign(targets[i], parts[i]);
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) return assign(target.parts, value);
  scopes_.back().insert_or_assign(target.name, value);
}

Value Interpreter::macro(const Node& node) const {
  ScopeRanges seen = {{frame_, scopes_.size()}};
  seen.insert(seen.end(), outer_->begin(), outer_->end());
  return Value(Function{&node, node.names[0], nullptr,
                        std::make_shared<const ScopeRanges>(std::move(seen))});
}

void Interpreter::call_with_caller(const Node& node) {
  const Value caller = macro(node);
  print(evaluate_call(*node.expression, &caller));
}

void Interpreter::with(const Node& node) {
  Values values;
  for (const auto& value : node.defaults) values.push_back(evaluate(*value));
  scopes_.emplace_back();
  for (size_t i = 0; i < values.size(); ++i) assign(node.targets[i], values[i]);
  execute(node.body);
  scopes_.pop_back();
}

void Interpreter::loop(const Node& node, Values items, int64_t depth) {
  if (node.condition != nullptr) {
    Values kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      assign(node.targets, item);
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
  const auto seen = std::make_shared<Values>();
  for (size_t i = 0; i < all->items.size(); ++i) {
    const auto state =
        std::make_shared<const Loop>(Loop{all, i, node.recursive ? &node : nullptr, depth, seen});
    if (turn(node, state) == Flow::kBreak) break;
  }
}

Interpreter::Flow Interpreter::turn(const Node& node, const std::shared_ptr<const Loop>& loop) {
  scopes_.emplace_back();
  scopes_.back().insert_or_assign("loop", Value(loop));
  assign(node.targets, loop->items->items[loop->index]);
  const Flow flow = execute(node.body);
  scopes_.pop_back();
  return flow;
}

Value Interpreter::look_up(const std::string& name) {
  const Value* found = nullptr;
  const auto search = [&](size_t first, size_t end) {
    for (size_t i = std::min(end, scopes_.size()); i > first && found == nullptr; --i) {
      const auto at = scopes_[i - 1].find(name);
      if (at != scopes_[i - 1].end()) found = &at->second;
    }
  };
  search(frame_, scopes_.size());
  for (const auto& [first, end] : *outer_) search(first, end);
  if (found != nullptr) return *found;
  if (find_global(name) != nullptr) return Value(Function{nullptr, name});
  return Value(Undefined{std::make_shared<const std::string>(name)});
}

/// Puts a macro's arguments in the scope that it runs in.
void Interpreter::bind_parameters(const Node& macro, Values positional,
                                  std::vector<std::pair<std::string, Value>> named) {
  const size_t count = macro.names.size() - 1;
  if (positional.size() > count && !macro.takes_more)
    rt_.fail(fmt::format("the macro '{}' takes {} arguments, not {}", macro.names[0], count,
                         positional.size()));
  const auto take = [&](const std::string& name) -> std::optional<Value> {
    const auto given = std::find_if(named.begin(), named.end(),
                                    [&](const auto& item) { return item.first == name; });
    if (given == named.end()) return std::nullopt;
    Value value = std::move(given->second);
    named.erase(given);
    return value;
  };
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.names[i + 1];
    Value value(Undefined{std::make_shared<const std::string>(name)});
    if (std::optional<Value> given = take(name)) {
      if (i < positional.size()) rt_.fail(fmt::format("the argument '{}' is given twice", name));
      value = *std::move(given);
    } else if (i < positional.size()) {
      value = std::move(positional[i]);
    } else if (macro.defaults[i] != nullptr) {
      value = evaluate(*macro.defaults[i]);
    }
    scopes_.back().insert_or_assign(name, std::move(value));
  }
  if (std::optional<Value> caller = take("caller"))
    scopes_.back().insert_or_assign("caller", *std::move(caller));
  if (macro.takes_more) {
    Values more;
    for (size_t i = count; i < positional.size(); ++i) more.push_back(std::move(positional[i]));
    scopes_.back().insert_or_assign("varargs", rt_.list(std::move(more), List::Kind::kTuple));
  }
  if (macro.named) {
    Dict rest;
    for (auto& [name, value] : named) rest.set(Text(name, Origin::kTemplate), std::move(value));
    scopes_.back().insert_or_assign("kwargs", rt_.dict(std::move(rest)));
  } else if (!named.empty()) {
    rt_.fail(fmt::format("the macro '{}' has no parameter '{}'", macro.names[0], named[0].first));
  }
}

Value Interpreter::call_macro(const Function& macro, Values positional,
                              std::vector<std::pair<std::string, Value>> named) {
  if (macros_ >= kMaxNesting)
    rt_.fail(fmt::format("macros call each other more than {} deep", kMaxNesting));
  const size_t outer_frame = std::exchange(frame_, scopes_.size());
  const auto outer_ranges = std::exchange(outer_, macro.outer);
  const int line = rt_.line;
  scopes_.emplace_back();
  bind_parameters(*macro.macro, std::move(positional), std::move(named));
  ++macros_;
  Text text = captured([&] { execute(macro.macro->body); });
  --macros_;
  scopes_.pop_back();
  frame_ = outer_frame;
  outer_ = outer_ranges;
  rt_.line = line;
  return rt_.text(std::move(text));
}

}  // namespace pith::chat
