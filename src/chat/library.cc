#include "chat/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "chat/syntax.h"

namespace pith::chat {

void Runtime::fail(const std::string& what, ErrorCode code) { fail_at(code, name_, line, what); }

void Runtime::out_of_steps() { fail(fmt::format("rendering takes more than {} steps", kMaxSteps)); }

void Runtime::check_size(size_t bytes) {
  if (bytes > kMaxOutput) fail("a text of more than 64 MiB");
}

void Runtime::check_extent(const Value& container) {
  const Extent extent = extent_of(container);
  if (extent.depth > kMaxDepth) fail(fmt::format("a value of more than {} levels", kMaxDepth));
  if (extent.size > kMaxSteps) fail("a value of more than ten million parts");
}

Value Runtime::text_of(Text text) {
  check_size(text.size());
  charge(1 + text.size() / 64 + text.runs().size());
  return Value(std::move(text));
}

Value Runtime::text(Text text) { return text_of(std::move(text)); }

Value Runtime::list(Values items, List::Kind kind) {
  charge(1 + items.size());
  Value out(List(kind, std::move(items)));
  check_extent(out);
  return out;
}

Value Runtime::dict(Dict dict) {
  charge(1 + dict.items.size());
  Value out(std::move(dict));
  check_extent(out);
  return out;
}

namespace {

/// The parameters of a row, and how many must be given.
struct Parameters {
  std::vector<std::string_view> names;
  size_t required = 0;
};

Parameters parameters_of(const Entry& entry) {
  Parameters out;
  std::string_view rest = entry.parameters;
  while (!rest.empty()) {
    const size_t space = std::min(rest.find(' '), rest.size());
    std::string_view name = rest.substr(0, space);
    rest.remove_prefix(std::min(space + 1, rest.size()));
    if (name.starts_with('!')) {
      name.remove_prefix(1);
      out.required = out.names.size() + 1;
    }
    out.names.push_back(name);
  }
  return out;
}

/// The fault of a call of `entry` with so many arguments and these names; "" if nothing.
std::string fault_of_call(const Entry& entry, size_t positional,
                          const std::vector<std::string_view>& named) {
  const Parameters parameters = parameters_of(entry);
  if (positional > parameters.names.size() && !entry.takes_more)
    return fmt::format("takes at most {} arguments, not {}", parameters.names.size(), positional);
  for (size_t i = positional; i < parameters.required; ++i) {
    if (std::find(named.begin(), named.end(), parameters.names[i]) == named.end())
      return fmt::format("needs the argument '{}'", parameters.names[i]);
  }
  for (const std::string_view name : named) {
    const auto found = std::find(parameters.names.begin(), parameters.names.end(), name);
    const auto slot = static_cast<size_t>(found - parameters.names.begin());
    if (found == parameters.names.end() && !entry.takes_more)
      return fmt::format("has no argument '{}'", name);
    if (slot < positional && found != parameters.names.end())
      return fmt::format("gets the argument '{}' twice", name);
  }
  return "";
}

}  // namespace

Arguments bind(Runtime& rt, const Entry& entry, Values positional,
               std::vector<std::pair<std::string, Value>> named) {
  std::vector<std::string_view> names;
  for (const auto& item : named) names.push_back(item.first);
  const std::string fault = fault_of_call(entry, positional.size(), names);
  if (!fault.empty()) rt.fail(fmt::format("'{}' {}", entry.name, fault));
  const Parameters parameters = parameters_of(entry);
  Arguments out;
  out.slots.resize(parameters.names.size());
  for (size_t i = 0; i < positional.size(); ++i) {
    if (i < out.slots.size())
      out.slots[i] = std::move(positional[i]);
    else
      out.more.push_back(std::move(positional[i]));
  }
  for (auto& item : named) {
    const auto found = std::find(parameters.names.begin(), parameters.names.end(), item.first);
    if (found == parameters.names.end())
      out.named.push_back(std::move(item));
    else
      out.slots[static_cast<size_t>(found - parameters.names.begin())] = std::move(item.second);
  }
  return out;
}

Value call(Runtime& rt, const Entry& entry, const Value& self, Values positional,
           std::vector<std::pair<std::string, Value>> named) {
  return entry.apply(rt, self, bind(rt, entry, std::move(positional), std::move(named)));
}

int64_t integer_argument(Runtime& rt, const Arguments& a, size_t slot, int64_t fallback) {
  if (!a.has(slot) || a.at(slot).is_none()) return fallback;
  if (!a.at(slot).is_integer())
    rt.fail(fmt::format("an integer is needed, not {}", describe_type(a.at(slot))));
  return a.at(slot).integer();
}

bool flag_argument(const Arguments& a, size_t slot, bool fallback) {
  return a.has(slot) ? truth(a.at(slot)) : fallback;
}

const Text& text_argument(Runtime& rt, const Arguments& a, size_t slot, const char* what) {
  const Text* text = a.at(slot).text();
  if (text == nullptr)
    rt.fail(fmt::format("{} must be a string, not {}", what, describe_type(a.at(slot))));
  return *text;
}

namespace {

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto& items = loop.items->items;
  const auto count = static_cast<int64_t>(items.size()), at = static_cast<int64_t>(loop.index);
  if (name == "index") return Value(at + 1);
  if (name == "index0") return Value(at);
  if (name == "revindex") return Value(count - at);
  if (name == "revindex0") return Value(count - at - 1);
  if (name == "first") return Value(at == 0);
  if (name == "last") return Value(at == count - 1);
  if (name == "length") return Value(count);
  if (name == "depth") return Value(loop.depth);
  if (name == "depth0") return Value(loop.depth - 1);
  if (name == "previtem") return at == 0 ? Value() : items[loop.index - 1];
  if (name == "nextitem") return at == count - 1 ? Value() : items[loop.index + 1];
  return {};
}

bool has_method(const Value& object, std::string_view name) {
  static constexpr std::string_view kOfDicts[] = {"items", "keys", "values", "get"};
  if (object.dict() != nullptr)
    return std::find(std::begin(kOfDicts), std::end(kOfDicts), name) != std::end(kOfDicts);
  return object.text() != nullptr && find_method(name) != nullptr &&
         std::find(std::begin(kOfDicts), std::end(kOfDicts), name) == std::end(kOfDicts);
}

Value missing(std::string_view name) {
  return Value(Undefined{std::make_shared<const std::string>(name)});
}

Value method_of(const Value& object, std::string_view name) {
  return Value(Function{nullptr, std::string(name), std::make_shared<const Value>(object)});
}

Value member(const Value& object, std::string_view name) {
  if (const Dict* dict = object.dict()) {
    const Value* found = dict->find(name);
    return found == nullptr ? missing(name) : *found;
  }
  if (const Namespace* space = object.space()) {
    const auto found = space->members.find(name);
    return found == space->members.end() ? missing(name) : found->second;
  }
  if (const Loop* loop = object.loop()) return loop_attribute(*loop, name);
  if (const List* list = object.list();
      list != nullptr && list->kind == List::Kind::kGroup && list->items.size() == 2) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  return missing(name);
}

}  // namespace

Value attribute(Runtime& rt, const Value& object, std::string_view name) {
  if (object.is_undefined()) rt.fail(fmt::format("'{}' of {}", name, describe_type(object)));
  return has_method(object, name) ? method_of(object, name) : member(object, name);
}

Value item(Runtime& rt, const Value& object, const Value& key) {
  if (object.is_undefined()) rt.fail(fmt::format("an item of {}", describe_type(object)));
  if (const Text* name = key.text()) {
    Value found = member(object, name->bytes());
    if (found.is_undefined() && has_method(object, name->bytes()) &&
        (object.dict() == nullptr || object.dict()->find(name->bytes()) == nullptr))
      return method_of(object, name->bytes());
    return found;
  }
  if (!key.is_integer()) return {};
  if (const Dict* dict = object.dict()) {
    const Value* found = dict->find(key.integer());
    return found == nullptr ? Value() : *found;
  }
  int64_t at = key.integer();
  if (const Text* text = object.text()) {
    rt.charge(1 + text->size() / 64);
    const auto count = static_cast<int64_t>(count_characters(text->bytes()));
    if (at < 0) at += count;
    if (at < 0 || at >= count) return {};
    const size_t begin = offset_of(text->bytes(), static_cast<size_t>(at));
    return rt.text(text->slice(begin, begin + character_size(text->bytes(), begin)));
  }
  const List* list = object.list();
  if (list == nullptr || list->kind == List::Kind::kView || list->kind == List::Kind::kIterator)
    return {};
  const auto count = static_cast<int64_t>(list->items.size());
  if (at < 0) at += count;
  return at < 0 || at >= count ? Value() : list->items[static_cast<size_t>(at)];
}

Values elements(Runtime& rt, const Value& value) {
  Values out;
  if (const List* list = value.list()) {
    rt.charge(list->items.size());
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    rt.charge(dict->items.size());
    for (const auto& entry : dict->items) out.push_back(entry.first);
    return out;
  }
  if (const Text* text = value.text()) {
    rt.charge(8 * text->size());  // each becomes a value
    for (size_t at = 0; at < text->size();) {
      const size_t size = character_size(text->bytes(), at);
      out.push_back(Value(text->slice(at, at + size)));
      at += size;
    }
    return out;
  }
  if (!value.is_undefined())
    rt.fail(fmt::format("{} is nothing to walk through", describe_type(value)));
  return out;
}

}  // namespace pith::chat
