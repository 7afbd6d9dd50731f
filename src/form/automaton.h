#pragma once
// The automaton of a schema, over bytes. It is a stack machine; a state is the set of stacks that
// fit the bytes so far, and states, their transitions and their masks are made when first asked for
// and kept: inside of a string every token but those with a quote leads back to the same state.
// Cost of a mask the first time: one step a node of the vocabulary's trie that is reached, inside
// of strings of the trie of tokens with quotes, escapes or parts of characters alone.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "form/schema.h"
#include "form/vocabulary.h"

namespace pith::form {

class Automaton {
 public:
  /// Both must outlive it.
  Automaton(const Schema& schema, const Vocabulary& vocabulary);

  static constexpr int32_t kDead = -1;
  int32_t start() const { return start_; }
  int32_t next(int32_t state, uint8_t byte);
  /// The whole form may be over, and is over.
  bool may_end(int32_t state) const;
  bool complete(int32_t state) const;
  /// [vocabulary words]
  std::span<const uint32_t> mask(int32_t state);

  /// Host memory of what is remembered; at any time, by any thread. Past kMostBytes a new one
  /// should go on.
  size_t bytes() const { return bytes_; }
  bool full() const { return bytes_ > kMostBytes; }
  static constexpr size_t kMostBytes = size_t{8} << 20;
  /// The state that is `state` in another one of the same schema.
  int32_t adopt(const Automaton& other, int32_t state);

 private:
  enum class Part : uint8_t { kLiteral, kSpace, kValue, kObject, kArray, kString, kKey, kNumber };
  /// A symbol on a stack: a terminal that eats bytes, or what becomes some of these.
  struct Symbol {
    Part part = Part::kSpace;
    int32_t what = 0;   // the literal, or the node
    int32_t at = 0;     // bytes of a literal, characters, digits, items or properties so far
    uint8_t phase = 0;  // within a character, a number; of lists: something has come
    auto operator<=>(const Symbol&) const = default;
  };
  struct Cell {
    Symbol symbol;
    int32_t below = 0;  // the stack without it; 0: nothing is left
    int32_t nest = 0;   // objects and lists in it
    auto operator<=>(const Cell&) const = default;
  };
  struct State {
    std::vector<int32_t> stacks;  // by their first cell, in order
    std::array<int32_t, 256> next;
    std::vector<uint32_t> mask;
  };

  int32_t push(int32_t below, Symbol symbol);
  int32_t push_literal(int32_t below, int32_t literal) {
    return push(below, {Part::kLiteral, literal, 0, 0});
  }
  int32_t state_of(std::vector<int32_t> stacks);
  void expand(int32_t stack, std::vector<int32_t>& out);
  void expand_value(int32_t node, int32_t below, std::vector<int32_t>& out);
  void expand_object(const Symbol& s, int32_t below, std::vector<int32_t>& out);
  void expand_array(const Symbol& s, int32_t below, std::vector<int32_t>& out);
  int32_t push_separator(int32_t below, bool needed);
  void eat(int32_t stack, uint8_t byte, std::vector<int32_t>& out);
  void eat_string(const Cell& cell, uint8_t byte, std::vector<int32_t>& out);
  void eat_key(const Cell& cell, uint8_t byte, std::vector<int32_t>& out);
  void eat_number(const Cell& cell, uint8_t byte, std::vector<int32_t>& out);
  bool takes_plain_text(int32_t state) const;
  void walk(int32_t state, const Trie& trie, std::vector<uint32_t>& mask);

  const Schema& schema_;
  const Vocabulary& vocabulary_;
  int32_t comma_, colon_, quote_, opens_object_, closes_object_, opens_list_, closes_list_, true_,
      false_, null_;
  std::vector<std::string> literals_;  // the schema's, and JSON's own
  std::vector<Cell> cells_;
  std::map<Cell, int32_t> cell_numbers_;
  std::deque<State> states_;
  std::map<std::vector<int32_t>, int32_t> state_numbers_;
  std::atomic<size_t> bytes_{0};
  int32_t start_ = 0;
};

}  // namespace pith::form
