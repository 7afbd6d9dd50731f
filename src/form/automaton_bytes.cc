// The effect of a byte on the first symbol of a stack.

#include "form/automaton.h"

namespace pith::form {
namespace {

// Phases within a string: of an escape, and of a character of several bytes by what may follow.
enum Phase : uint8_t {
  kPlain,
  kEscape,
  kHex1,
  kHex2,
  kHex3,
  kHex4,
  kHexAfterD,  // no halves of pairs: D8 to DF
  kOneMore,
  kTwoMore,
  kThreeMore,
  kAfterE0,
  kAfterEd,
  kAfterF0,
  kAfterF4
};
constexpr int kRefused = -1;

bool is_hex(uint8_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool between(uint8_t c, int least, int most) { return c >= least && c <= most; }

int first_byte(uint8_t c) {
  if (c < 0x20) return kRefused;
  if (c < 0x80) return kPlain;
  if (between(c, 0xC2, 0xDF)) return kOneMore;
  if (c == 0xE0) return kAfterE0;
  if (c == 0xED) return kAfterEd;
  if (between(c, 0xE1, 0xEF)) return kTwoMore;
  if (c == 0xF0) return kAfterF0;
  if (c == 0xF4) return kAfterF4;
  return between(c, 0xF1, 0xF3) ? kThreeMore : kRefused;
}

/// The phase after a byte that is none of the first of a character.
int later_byte(uint8_t phase, uint8_t c) {
  switch (phase) {
    case kEscape:
      if (c == 'u') return kHex1;
      for (const char known : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'})
        if (c == static_cast<uint8_t>(known)) return kPlain;
      return kRefused;
    case kHex1: return c == 'd' || c == 'D' ? kHexAfterD : is_hex(c) ? kHex2 : kRefused;
    case kHexAfterD: return between(c, '0', '7') ? kHex3 : kRefused;
    case kHex2: return is_hex(c) ? kHex3 : kRefused;
    case kHex3: return is_hex(c) ? kHex4 : kRefused;
    case kHex4: return is_hex(c) ? kPlain : kRefused;
    case kOneMore: return between(c, 0x80, 0xBF) ? kPlain : kRefused;
    case kTwoMore: return between(c, 0x80, 0xBF) ? kOneMore : kRefused;
    case kThreeMore: return between(c, 0x80, 0xBF) ? kTwoMore : kRefused;
    case kAfterE0: return between(c, 0xA0, 0xBF) ? kOneMore : kRefused;
    case kAfterEd: return between(c, 0x80, 0x9F) ? kOneMore : kRefused;
    case kAfterF0: return between(c, 0x90, 0xBF) ? kTwoMore : kRefused;
    case kAfterF4: return between(c, 0x80, 0x8F) ? kTwoMore : kRefused;
    default: return kRefused;
  }
}

// Phases of a number: nothing yet, behind a minus, a zero in front, digits, behind the point, its
// digits, behind the e, behind its sign, its digits.
enum Digits : uint8_t { kStart, kMinus, kZero, kWhole, kPoint, kPart, kE, kSign, kPower };
constexpr int32_t kMostDigits = 17, kMostPower = 2;  // what a double holds

struct Count {
  int phase = kRefused;
  int32_t at = 0;
};

Count count_digit(uint8_t phase, int32_t at, uint8_t c) {
  const auto more = [&](int next, int32_t most) {
    return at < most ? Count{next, at + 1} : Count{};
  };
  switch (phase) {
    case kStart:
    case kMinus: return c == '0' ? Count{kZero, 0} : Count{kWhole, 1};
    case kWhole: return more(kWhole, kMostDigits);
    case kPoint: return {kPart, 1};
    case kPart: return more(kPart, kMostDigits);
    case kE:
    case kSign: return {kPower, 1};
    case kPower: return more(kPower, kMostPower);
    default: return {};
  }
}

bool is_number(uint8_t phase) {
  return phase == kZero || phase == kWhole || phase == kPart || phase == kPower;
}

}  // namespace

void Automaton::eat(int32_t stack, uint8_t byte, std::vector<int32_t>& out) {
  if (stack == 0) return;
  const Cell cell = cells_[static_cast<size_t>(stack)];
  const Symbol& s = cell.symbol;
  switch (s.part) {
    case Part::kLiteral: {
      const std::string& text = literals_[static_cast<size_t>(s.what)];
      if (static_cast<uint8_t>(text[static_cast<size_t>(s.at)]) != byte) return;
      const bool whole = static_cast<size_t>(s.at) + 1 == text.size();
      out.push_back(whole ? cell.below : push(cell.below, {Part::kLiteral, s.what, s.at + 1, 0}));
      return;
    }
    case Part::kSpace:
      if (byte == ' ') out.push_back(cell.below);
      return;
    case Part::kString: return eat_string(cell, byte, out);
    case Part::kKey: return eat_key(cell, byte, out);
    case Part::kNumber: return eat_number(cell, byte, out);
    default: return;
  }
}

void Automaton::eat_string(const Cell& cell, uint8_t byte, std::vector<int32_t>& out) {
  const Symbol& s = cell.symbol;
  const Node& node = schema_.nodes[static_cast<size_t>(s.what)];
  if (s.phase == kPlain && byte == '"') {
    if (s.at >= node.least) out.push_back(cell.below);
    return;
  }
  // Characters are counted where they begin, as far as a limit asks.
  int32_t at = s.at;
  if (s.phase == kPlain) {
    if (node.most >= 0 && at >= node.most) return;
    if (at < std::max(node.least, node.most)) ++at;
  }
  const int phase = s.phase == kPlain
                        ? (byte == '\\' ? static_cast<int>(kEscape) : first_byte(byte))
                        : later_byte(s.phase, byte);
  if (phase == kRefused) return;
  out.push_back(push(cell.below, {Part::kString, s.what, at, static_cast<uint8_t>(phase)}));
}

/// Names are spelled without escapes, so that two that differ are two.
void Automaton::eat_key(const Cell& cell, uint8_t byte, std::vector<int32_t>& out) {
  const Symbol& s = cell.symbol;
  const Node& node = schema_.nodes[static_cast<size_t>(s.what)];
  if (s.phase == kPlain && byte == '"') {
    if (s.at < 0 || !node.ends[static_cast<size_t>(s.at)]) out.push_back(cell.below);
    return;
  }
  if (s.phase == kPlain && byte == '\\') return;
  const int phase = s.phase == kPlain ? first_byte(byte) : later_byte(s.phase, byte);
  if (phase == kRefused) return;
  int32_t at = -1;
  if (s.at >= 0) {
    const auto found =
        node.beginnings.find(node.spelled[static_cast<size_t>(s.at)] + static_cast<char>(byte));
    if (found != node.beginnings.end()) at = found->second;
  }
  out.push_back(push(cell.below, {Part::kKey, s.what, at, static_cast<uint8_t>(phase)}));
}

void Automaton::eat_number(const Cell& cell, uint8_t byte, std::vector<int32_t>& out) {
  const Symbol& s = cell.symbol;
  const bool whole = schema_.nodes[static_cast<size_t>(s.what)].kind == Kind::kInteger;
  Count next;
  if (between(byte, '0', '9'))
    next = count_digit(s.phase, s.at, byte);
  else if (byte == '-' && (s.phase == kStart || s.phase == kE))
    next = {s.phase == kStart ? kMinus : kSign, 0};
  else if (byte == '+' && s.phase == kE)
    next = {kSign, 0};
  else if (byte == '.' && !whole && (s.phase == kZero || s.phase == kWhole))
    next = {kPoint, 0};
  else if ((byte == 'e' || byte == 'E') && !whole && s.phase != kPower && is_number(s.phase))
    next = {kE, 0};
  if (next.phase == kRefused) return;
  const auto phase = static_cast<uint8_t>(next.phase);
  out.push_back(push(cell.below, {Part::kNumber, s.what, next.at, phase}));
  if (is_number(phase)) out.push_back(cell.below);
}

}  // namespace pith::form
