#include "pith/error.h"

namespace pith {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kOutOfMemory: return "out of memory";
    case ErrorCode::kContextFull: return "context full";
    case ErrorCode::kNonFinite: return "non-finite";
    case ErrorCode::kIo: return "i/o";
    case ErrorCode::kInternal: return "internal";
    case ErrorCode::kBufferTooSmall: return "buffer too small";
  }
  return "unknown";
}

}  // namespace pith
