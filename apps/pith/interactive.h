#pragma once
// The interactive mode of `run`.

#include <string>

#include "pith/generate.h"

namespace pith::cli {

/// Reads lines and answers each, on one cache, until /quit, the end of input or Ctrl-C at the
/// prompt. `bos` as encode_prompt takes it, for the first line. Returns the exit status.
struct InteractiveOptions {
  GenerateOptions generate;
  std::string first;  ///< a prompt from -p or -f, answered before the first line is read
  int bos = -1;
  bool echo_first = true;
};
int run_interactive(Session session, const InteractiveOptions& options);

}  // namespace pith::cli
