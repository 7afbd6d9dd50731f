#pragma once
// Every failure of the library is one pith::Error: a code for programs, a sentence for people.

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// The kind of an error. The CLI's exit status is 10 + the code's value.
enum class ErrorCode {
  kInvalidArgument = 0,  ///< a parameter, policy or prompt that makes no sense
  kNotFound = 1,         ///< a file or tensor that does not exist
  kCorrupt = 2,          ///< a malformed or truncated file
  kUnsupported = 3,      ///< well-formed, but not something this build can do
  kOutOfMemory = 4,      ///< the allocator's limit or the machine's
  kContextFull = 5,      ///< more tokens than the context or the model allows
  kNonFinite = 6,        ///< NaN or infinity in weights or activations
  kIo = 7,               ///< the operating system refused a read or a write
  kInternal = 8,         ///< a broken invariant: a bug of ours
  kBufferTooSmall = 9,   ///< the caller's buffer is smaller than the result; the size is returned
};

/// Returns the code's name, e.g. "unsupported".
const char* to_string(ErrorCode code);

/// Thrown at the library's boundaries. The message names the request, what is supported and
/// what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace pith

#pragma GCC visibility pop
