#include "chat/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace pith::chat {

namespace {

struct MacroSite {
  Runtime& rt;
  Scopes& scopes;
  Evaluator& expressions;
};

/// Takes the argument of that name out of those given.
std::optional<Value> take(Given& given, const std::string& name) {
  const auto found = std::ranges::find(given.named, name, [](auto& item) { return item.first; });
  if (found == given.named.end()) return std::nullopt;
  Value value = std::move(found->second);
  given.named.erase(found);
  return value;
}

/// Puts a macro's arguments in the scope that it runs in.
void bind_parameters(const MacroSite& site, const Node& macro, Given given) {
  auto& [rt, scopes, expressions] = site;
  Values& positional = given.positional;
  const size_t count = macro.names.size() - 1;
  if (positional.size() > count && !macro.takes_more)
    rt.fail(fmt::format("the macro '{}' takes {} arguments, not {}", macro.names[0], count,
                        positional.size()));
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.names[i + 1];
    Value value(Undefined{std::make_shared<const std::string>(name)});
    if (std::optional<Value> named = take(given, name)) {
      if (i < positional.size()) rt.fail(fmt::format("the argument '{}' is given twice", name));
      value = *std::move(named);
    } else if (i < positional.size()) {
      value = std::move(positional[i]);
    } else if (macro.defaults[i] != nullptr) {
      value = expressions.evaluate(*macro.defaults[i]);
    }
    scopes.set(name, std::move(value));
  }
  if (std::optional<Value> caller = take(given, "caller")) scopes.set("caller", *std::move(caller));
  if (macro.takes_more) {
    Values more;
    for (size_t i = count; i < positional.size(); ++i) more.push_back(std::move(positional[i]));
    scopes.set("varargs", rt.list(std::move(more), List::Kind::kTuple));
  }
  if (macro.named) {
    Dict rest;
    for (auto& [name, value] : given.named)
      rest.set(Text(name, Origin::kTemplate), std::move(value));
    scopes.set("kwargs", rt.dict(std::move(rest)));
  } else if (!given.named.empty()) {
    rt.fail(
        fmt::format("the macro '{}' has no parameter '{}'", macro.names[0], given.named[0].first));
  }
}

}  // namespace

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
  const Runtime::Level level(rt_);
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
    case Node::Kind::kMacro: scopes_.set(node.names[0], macro(node)); break;
    case Node::Kind::kCall: call_with_caller(node); break;
    case Node::Kind::kWith: with(node); break;
    case Node::Kind::kFilter: print(body_text(node)); break;
    case Node::Kind::kScope: return execute_inside(node.body);
    case Node::Kind::kAnother:
      rt_.fail(fmt::format("not supported: the tag '{}': there is no other template", node.member),
               ErrorCode::kUnsupported);
    case Node::Kind::kBreak: return Flow::kBreak;
    case Node::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_inside(const Nodes& nodes) {
  const Scopes::Inner inner(scopes_);
  return execute(nodes);
}

void Interpreter::print(const Value& value) {
  rt_.charge_walk(value);
  const Text text = to_text(value);
  rt_.check_size(out_->size() + text.size());
  out_->append(text);
}

Value Interpreter::body_text(const Node& node) {
  Value value = rt_.text(captured([&] { execute_inside(node.body); }));
  if (node.expression == nullptr) return value;
  return expressions_.filter_body(*node.expression, std::move(value));
}

void Interpreter::set(const Node& node, Value value) {
  if (node.member.empty()) return assign(node.targets, value);
  const Value target = scopes_.look_up(node.names[0]);
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
  scopes_.set(target.name, value);
}

Value Interpreter::macro(const Node& node) const {
  return Value(Function{&node, node.names[0], nullptr, scopes_.seen()});
}

void Interpreter::call_with_caller(const Node& node) {
  const Value caller = macro(node);
  print(expressions_.evaluate_call(*node.expression, &caller));
}

void Interpreter::with(const Node& node) {
  Values values;
  for (const auto& value : node.defaults) values.push_back(evaluate(*value));
  const Scopes::Inner inner(scopes_);
  for (size_t i = 0; i < values.size(); ++i) assign(node.targets[i], values[i]);
  execute(node.body);
}

void Interpreter::loop(const Node& node, Values items, int64_t depth) {
  if (node.condition != nullptr) {
    Values kept;
    for (Value& item : items) {
      const Scopes::Inner inner(scopes_);
      assign(node.targets, item);
      if (truth(evaluate(*node.condition))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    execute_inside(node.otherwise);
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
  const Scopes::Inner inner(scopes_);
  scopes_.set("loop", Value(loop));
  assign(node.targets, loop->items->items[loop->index]);
  return execute(node.body);
}

Value Interpreter::run_loop(const Loop& loop, Values items) {
  return rt_.text(captured([&] { this->loop(*loop.node, std::move(items), loop.depth + 1); }));
}

Value Interpreter::run_macro(const Function& macro, Given given) {
  if (macros_ >= kMaxNesting)
    rt_.fail(fmt::format("macros call each other more than {} deep", kMaxNesting));
  const int line = rt_.line;
  const Scopes::Frame frame(scopes_, macro.outer);
  bind_parameters({rt_, scopes_, expressions_}, *macro.macro, std::move(given));
  ++macros_;
  Text text = captured([&] { execute(macro.macro->body); });
  --macros_;
  rt_.line = line;
  return rt_.text(std::move(text));
}

}  // namespace pith::chat
