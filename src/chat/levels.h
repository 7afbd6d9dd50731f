#pragma once
// The guard of the interpreter's recursion.

#include "chat/interpreter.h"

namespace pith::chat {

class Interpreter::Level {
 public:
  explicit Level(Interpreter& in) : in_(in) {
    if (++in_.levels_ > kMost) in_.rt_.fail("expressions and macros nest too deep");
  }
  ~Level() { --in_.levels_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  // A level takes about 1 KiB of stack, some 4 KiB under AddressSanitizer; threads have 8 MiB.
  static constexpr int kMost = 1000;
  Interpreter& in_;
};

}  // namespace pith::chat
