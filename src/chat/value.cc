#include "chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pith::chat {

Value::Value(Text text) : data(std::make_shared<const Text>(std::move(text))) {}
Value::Value(List list) : data(std::make_shared<const List>(std::move(list))) {}
Value::Value(Dict dict) : data(std::make_shared<const Dict>(std::move(dict))) {}

int64_t Value::integer() const {
  return is_bool() ? std::get<bool>(data) : std::get<int64_t>(data);
}

double Value::number() const {
  return is_float() ? std::get<double>(data) : static_cast<double>(integer());
}

Extent extent_of(const Value& value) {
  if (const List* list = value.list()) return list->extent;
  if (const Dict* dict = value.dict()) return dict->extent;
  if (const Loop* loop = value.loop()) return {0, 1, loop->items->extent.spaces, true};
  const Function* function = value.function();
  if (function != nullptr && function->self != nullptr)
    return {0, 1, extent_of(*function->self).spaces, extent_of(*function->self).loops};
  const Text* text = value.text();
  return {0, text == nullptr ? 1 : 1 + text->size() / 64 + text->runs().size(),
          value.space() != nullptr};
}

void Extent::include(const Value& value) {
  const Extent other = extent_of(value);
  depth = std::max(depth, other.depth + 1);
  size += std::min(other.size, uint64_t{1} << 60) + 1;
  spaces |= other.spaces;
  loops |= other.loops;
}

List::List(Kind of_kind, Values of_items) : kind(of_kind), items(std::move(of_items)) {
  for (const Value& item : items) extent.include(item);
}

void Dict::put(size_t place, const Value& key, Value value) {
  extent.include(value);
  if (place == items.size())
    items.emplace_back(key, std::move(value));
  else
    items[place].second = std::move(value);
}

void Dict::set(const Text& key, Value value) {
  put(index.emplace(key.bytes(), items.size()).first->second, Value(key), std::move(value));
}

bool Dict::set(const Value& key, Value value) {
  if (const Text* text = key.text()) {
    put(index.emplace(text->bytes(), items.size()).first->second, key, std::move(value));
  } else if (key.is_integer() && !key.is_bool()) {
    put(by_number.emplace(key.integer(), items.size()).first->second, key, std::move(value));
  } else {
    return false;
  }
  return true;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = index.find(std::string(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

const Value* Dict::find(int64_t key) const {
  const auto found = by_number.find(key);
  return found == by_number.end() ? nullptr : &items[found->second].second;
}

const Value* Dict::find_key(const Value& key) const {
  if (key.text() != nullptr) return find(key.text()->bytes());
  return key.is_integer() ? find(key.integer()) : nullptr;
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.number() != 0;
  if (const Text* text = value.text()) return !text->empty();
  // An iterator is an object, and true however little it gives.
  if (const List* list = value.list())
    return list->kind == List::Kind::kIterator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

std::string describe_type(const Value& value) {
  if (const auto* undefined = std::get_if<Undefined>(&value.data)) {
    return undefined->name == nullptr ? "undefined"
                                      : fmt::format("undefined ('{}')", *undefined->name);
  }
  if (value.is_none()) return "none";
  if (value.is_bool()) return "a boolean";
  if (value.is_integer()) return "an integer";
  if (value.is_float()) return "a float";
  if (value.wide() != nullptr) return "an integer of more than 64 bits";
  if (value.text() != nullptr) return "a string";
  if (value.dict() != nullptr) return "a dict";
  if (value.space() != nullptr) return "a namespace";
  if (value.function() != nullptr) return "a function";
  if (value.loop() != nullptr) return "the loop";
  switch (value.list()->kind) {
    case List::Kind::kTuple:
    case List::Kind::kGroup: return "a tuple";
    case List::Kind::kView: return "a view of a dict";
    case List::Kind::kIterator: return "an iterator (|list makes a list of it)";
    case List::Kind::kList: break;
  }
  return "a list";
}

namespace {

bool equal_items(const Values& a, const Values& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() &&
         std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
           const Value* other = b.find_key(item.first);
           return other != nullptr && equal(item.second, *other);
         });
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.data.index() != b.data.index()) return false;
  if (const Text* text = a.text()) return text->bytes() == b.text()->bytes();
  if (const List* list = a.list()) {
    return list == b.list() ||
           ((list->kind == b.list()->kind || (list->is_tuple() && b.list()->is_tuple())) &&
            equal_items(list->items, b.list()->items));
  }
  if (const Dict* dict = a.dict()) return dict == b.dict() || equal_dicts(*dict, *b.dict());
  if (a.space() != nullptr) return a.space() == b.space();
  if (a.wide() != nullptr) return *a.wide() == *b.wide();
  return a.is_undefined() || a.is_none();
}

Value wide_integer(std::string_view digits) {
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return Value(WideInteger((negative ? "-" : "") + std::string(digits)));
}

}  // namespace pith::chat
