// Stacks and what they become; states and masks.

#include "form/automaton.h"

#include <algorithm>

namespace pith::form {
namespace {

constexpr int32_t kUnknown = -2;
constexpr size_t kTreeNode = 48;  // bytes of a map's node beside its value

}  // namespace

Automaton::Automaton(const Schema& schema, const Vocabulary& vocabulary)
    : schema_(schema), vocabulary_(vocabulary), literals_(schema.literals) {
  const auto literal = [&](const char* text) {
    literals_.emplace_back(text);
    return static_cast<int32_t>(literals_.size()) - 1;
  };
  comma_ = literal(","), colon_ = literal(":"), quote_ = literal("\"");
  opens_object_ = literal("{"), closes_object_ = literal("}");
  opens_list_ = literal("["), closes_list_ = literal("]");
  true_ = literal("true"), false_ = literal("false"), null_ = literal("null");
  cells_.emplace_back();  // the empty stack
  int32_t stack = 0;
  if (schema.after >= 0) stack = push_literal(stack, schema.after);
  stack = push(stack, {Part::kValue, schema.value, 0, 0});
  if (schema.before >= 0) stack = push_literal(stack, schema.before);
  start_ = state_of({stack});
}

int32_t Automaton::push(int32_t below, Symbol symbol) {
  Cell cell{symbol, below, cells_[static_cast<size_t>(below)].nest};
  if (symbol.part == Part::kObject || symbol.part == Part::kArray) ++cell.nest;
  const auto [at, added] = cell_numbers_.emplace(cell, static_cast<int32_t>(cells_.size()));
  if (added) {
    cells_.push_back(cell);
    bytes_ += 2 * sizeof(Cell) + kTreeNode;
  }
  return at->second;
}

int32_t Automaton::push_separator(int32_t below, bool needed) {
  return needed ? push_literal(push(below, {Part::kSpace}), comma_) : below;
}

void Automaton::expand_value(int32_t number, int32_t below, std::vector<int32_t>& out) {
  const Node& node = schema_.nodes[static_cast<size_t>(number)];
  const int32_t room = kMostNest - cells_[static_cast<size_t>(below)].nest;
  if (node.height > room) return;  // it would not end within the levels that there are
  switch (node.kind) {
    case Kind::kAnyOf:
      for (const int32_t child : node.children)
        out.push_back(push(below, {Part::kValue, child, 0, 0}));
      return;
    case Kind::kLiterals:
      for (const int32_t literal : node.children) out.push_back(push_literal(below, literal));
      return;
    case Kind::kString:
      out.push_back(push_literal(push(below, {Part::kString, number, 0, 0}), quote_));
      return;
    case Kind::kNumber:
    case Kind::kInteger: out.push_back(push(below, {Part::kNumber, number, 0, 0})); return;
    case Kind::kObject:
      out.push_back(push_literal(push(below, {Part::kObject, number, 0, 0}), opens_object_));
      return;
    case Kind::kArray:
      out.push_back(push_literal(push(below, {Part::kArray, number, 0, 0}), opens_list_));
      return;
    case Kind::kAny: break;
  }
  // Node 0 as a string, a number, an object, a list: its limits are none.
  out.push_back(push_literal(push(below, {Part::kString, number, 0, 0}), quote_));
  out.push_back(push(below, {Part::kNumber, number, 0, 0}));
  for (const int32_t word : {true_, false_, null_}) out.push_back(push_literal(below, word));
  if (room < 1) return;
  out.push_back(push_literal(push(below, {Part::kObject, number, 0, 0}), opens_object_));
  out.push_back(push_literal(push(below, {Part::kArray, number, 0, 0}), opens_list_));
}

void Automaton::expand_object(const Symbol& s, int32_t below, std::vector<int32_t>& out) {
  const Node& node = schema_.nodes[static_cast<size_t>(s.what)];
  const auto count = static_cast<int32_t>(node.properties.size());
  for (int32_t i = s.at; i < count; ++i) {
    const Property& p = node.properties[static_cast<size_t>(i)];
    int32_t stack = push(below, {Part::kObject, s.what, i + 1, 1});
    stack = push(push(stack, {Part::kValue, p.node, 0, 0}), {Part::kSpace});
    out.push_back(push_separator(push_literal(stack, p.key), s.phase != 0));
    if (p.required) return;
  }
  out.push_back(push_literal(below, closes_object_));
  const int32_t others = node.kind == Kind::kAny ? 0 : node.others;
  if (others < 0) return;
  int32_t stack = push(below, {Part::kObject, s.what, count, 1});
  stack = push(push(stack, {Part::kValue, others, 0, 0}), {Part::kSpace});
  // Off all declared names from the start, where there are none.
  const int32_t at = node.spelled.size() > 1 ? 0 : -1;
  stack = push(push_literal(stack, colon_), {Part::kKey, s.what, at, 0});
  out.push_back(push_separator(push_literal(stack, quote_), s.phase != 0));
}

void Automaton::expand_array(const Symbol& s, int32_t below, std::vector<int32_t>& out) {
  const Node& node = schema_.nodes[static_cast<size_t>(s.what)];
  if (s.at >= node.least) out.push_back(push_literal(below, closes_list_));
  if (node.most >= 0 && s.at >= node.most) return;
  const int64_t counted = node.most >= 0 ? node.most : node.least;
  const auto at = static_cast<int32_t>(std::min<int64_t>(s.at + 1, counted));
  int32_t stack = push(below, {Part::kArray, s.what, at, 1});
  stack = push(stack, {Part::kValue, std::max(node.item, 0), 0, 0});
  out.push_back(push_separator(stack, s.phase != 0));
}

/// The stacks that a stack may become before a byte comes, without itself.
void Automaton::expand(int32_t stack, std::vector<int32_t>& out) {
  if (stack == 0) return;
  const Cell cell = cells_[static_cast<size_t>(stack)];
  switch (cell.symbol.part) {
    case Part::kSpace:
      out.push_back(cell.below);
      out.push_back(push(cell.below, {Part::kSpace, 0, 0, 1}));
      return;
    case Part::kValue: return expand_value(cell.symbol.what, cell.below, out);
    case Part::kObject: return expand_object(cell.symbol, cell.below, out);
    case Part::kArray: return expand_array(cell.symbol, cell.below, out);
    default: return;
  }
}

int32_t Automaton::state_of(std::vector<int32_t> stacks) {
  std::vector<int32_t> ready, seen;
  while (!stacks.empty()) {
    const int32_t stack = stacks.back();
    stacks.pop_back();
    if (std::find(seen.begin(), seen.end(), stack) != seen.end()) continue;
    seen.push_back(stack);
    const Symbol top = cells_[static_cast<size_t>(stack)].symbol;
    const bool eats = stack == 0 || top.part == Part::kLiteral || top.part == Part::kString ||
                      top.part == Part::kKey || top.part == Part::kNumber ||
                      (top.part == Part::kSpace && top.phase == 1);
    if (eats)
      ready.push_back(stack);
    else
      expand(stack, stacks);
  }
  if (ready.empty()) return kDead;
  std::sort(ready.begin(), ready.end());
  const auto [at, added] = state_numbers_.emplace(ready, static_cast<int32_t>(states_.size()));
  if (added) {
    State& state = states_.emplace_back();
    state.stacks = std::move(ready);
    state.next.fill(kUnknown);
    bytes_ += sizeof(State) + 2 * state.stacks.size() * sizeof(int32_t) + kTreeNode;
  }
  return at->second;
}

int32_t Automaton::next(int32_t state, uint8_t byte) {
  const int32_t known = states_[static_cast<size_t>(state)].next[byte];
  if (known != kUnknown) return known;
  std::vector<int32_t> out;
  // By index: eating adds cells, not stacks of this state.
  for (const int32_t stack : states_[static_cast<size_t>(state)].stacks) eat(stack, byte, out);
  const int32_t next = state_of(std::move(out));
  states_[static_cast<size_t>(state)].next[byte] = next;
  return next;
}

bool Automaton::may_end(int32_t state) const {
  return states_[static_cast<size_t>(state)].stacks.front() == 0;
}

bool Automaton::complete(int32_t state) const {
  return may_end(state) && states_[static_cast<size_t>(state)].stacks.size() == 1;
}

bool Automaton::takes_plain_text(int32_t number) const {
  const std::vector<int32_t>& stacks = states_[static_cast<size_t>(number)].stacks;
  return std::any_of(stacks.begin(), stacks.end(), [&](int32_t stack) {
    const Symbol& s = cells_[static_cast<size_t>(stack)].symbol;
    if (stack == 0 || s.phase != 0) return false;
    if (s.part == Part::kKey) return s.at < 0;
    if (s.part != Part::kString) return false;
    const int64_t most = schema_.nodes[static_cast<size_t>(s.what)].most;
    return most < 0 || most - s.at >= static_cast<int64_t>(vocabulary_.longest_plain);
  });
}

void Automaton::walk(int32_t state, const Trie& trie, std::vector<uint32_t>& mask) {
  std::vector<int32_t> states(trie.depth + 1);
  states[0] = state;
  for (size_t i = 0; i < trie.nodes.size();) {
    const Trie::Node& node = trie.nodes[i];
    const int32_t reached = next(states[node.depth - 1u], node.byte);
    if (reached == kDead) {
      i = node.end;
      continue;
    }
    states[node.depth] = reached;
    for (uint32_t t = node.first_token; t < node.first_token + node.tokens; ++t) {
      const auto id = static_cast<size_t>(trie.ids[t]);
      mask[id / 32] |= 1u << (id % 32);
    }
    ++i;
  }
}

std::span<const uint32_t> Automaton::mask(int32_t state) {
  if (states_[static_cast<size_t>(state)].mask.empty()) {
    bytes_ += vocabulary_.words() * sizeof(uint32_t);
    const bool plain = takes_plain_text(state);
    std::vector<uint32_t> mask =
        plain ? vocabulary_.plain : std::vector<uint32_t>(vocabulary_.words());
    walk(state, plain ? vocabulary_.others : vocabulary_.all, mask);
    states_[static_cast<size_t>(state)].mask = std::move(mask);
  }
  return states_[static_cast<size_t>(state)].mask;
}

int32_t Automaton::adopt(const Automaton& other, int32_t state) {
  std::vector<int32_t> stacks;
  for (int32_t stack : other.states_[static_cast<size_t>(state)].stacks) {
    std::vector<Symbol> symbols;
    for (; stack != 0; stack = other.cells_[static_cast<size_t>(stack)].below)
      symbols.push_back(other.cells_[static_cast<size_t>(stack)].symbol);
    int32_t own = 0;
    for (auto s = symbols.rbegin(); s != symbols.rend(); ++s) own = push(own, *s);
    stacks.push_back(own);
  }
  return state_of(std::move(stacks));
}

}  // namespace pith::form
