#pragma once
// Selectors of the calling program: a function that scores rows, under a name that every policy
// string may use from then on. Slower than the built-in ones by a decoding of all rows at each
// selection.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// The body rows of one KV head: those between sink and window, which a budget counts.
struct RowsToScore {
  int layer = 0, head = 0;
  size_t rows = 0;
  size_t head_dim = 0;                 // D
  const float* keys = nullptr;         ///< [rows, D] as attention reads them: decoded, after RoPE
  const float* values = nullptr;       ///< [rows, D] likewise
  const int64_t* positions = nullptr;  ///< [rows] ascending
  std::span<const double> mass = {};   ///< [rows] attention received; empty for Mass::kNone
};

struct OwnSelector {
  std::string name = {};  ///< lower-case letters, digits and _, beginning with a letter
  std::string summary = {};
  /// The queries whose attention RowsToScore::mass sums: none, all so far, or the last `queries`
  /// ones before a selection.
  enum class Mass : uint8_t { kNone, kAll, kLast } mass = Mass::kNone;
  size_t queries = 0;
  /// Gives each row a score; the larger stays, NaN is the worst. Called where a selection is due,
  /// head after head, on the thread that runs the pass, while the engine is held: it must not call
  /// the engine. The same rows must get the same scores. If it throws, so does the pass, and
  /// the session cannot be used after it.
  std::function<void(const RowsToScore& rows, std::span<double> scores)> score = {};
};

/// Adds a selector for the whole program. It keeps the `budget` best rows of each KV head,
/// takes the parameters of knorm, and runs on the CPU alone. Its name may be given another function
/// later; existing sessions keep theirs. Throws kInvalidArgument for names that are taken or
/// malformed, and for needs other than the name's earlier ones.
void add_selector(const OwnSelector& selector);

}  // namespace pith

#pragma GCC visibility pop
