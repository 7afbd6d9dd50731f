#pragma once
// Codecs of the calling program: two functions under a name that every policy string may use from
// then on. Slower than the built-in ones: attention decodes rows before it reads them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// Rows of one KV head, keys or values.
struct RowsToCode {
  int layer = 0, head = 0;
  bool keys = false;  ///< else values
  size_t rows = 0;
  size_t head_dim = 0;   // D
  size_t row_bytes = 0;  ///< of a coded row, from OwnCodec::row_bytes
};

struct OwnCodec {
  std::string name = {};  ///< lower-case letters, digits and _, beginning with a letter
  std::string summary = {};
  /// Bytes of a coded row of `head_dim` numbers, 1 to 2^20; the ledger and budgets count them.
  std::function<size_t(size_t head_dim)> row_bytes = {};
  /// codes [rows, row_bytes] <- x f32 [rows, D], keys after RoPE. A row's code must follow from
  /// that row alone: rows come in any number at once, and are evicted one by one.
  std::function<void(const RowsToCode& rows, const float* x, uint8_t* codes)> encode = {};
  /// x f32 [rows, D] <- codes [rows, row_bytes]. The same codes must give the same finite numbers.
  std::function<void(const RowsToCode& rows, const uint8_t* codes, float* x)> decode = {};
  // Both are called by several threads at once, within a pass, while the engine is held: they must
  // not call the engine. If one throws, so does the pass, and the session cannot be used after it.
};

/// Adds a codec for the whole program, for keys and values, on the CPU alone. It takes no
/// parameters. Its name may be given other functions later, with the same row_bytes; existing
/// sessions keep theirs. Throws kInvalidArgument for names that are taken or malformed.
void add_codec(const OwnCodec& codec);

}  // namespace pith

#pragma GCC visibility pop
