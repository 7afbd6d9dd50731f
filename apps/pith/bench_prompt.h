#pragma once
// Memory of a prompt that was read a layer at a time (prompt=exact, prompt=once).

#include <string>

#include "pith/session.h"
#include "report.h"

namespace pith::cli {

/// Bytes of the session's engine, by its own account.
struct PromptPeak {
  size_t tokens = 0;          ///< 0: no prompt was read so
  size_t peak = 0, held = 0;  ///< the most at any time; once the prompt is through
  size_t activations = 0;     ///< residual stream, queries, their results, angles
  size_t layer = 0;           ///< the exact rows of one layer
  /// All else that was there at the peak, in layers of exact rows.
  double layers() const;
};

/// Of an engine that has read this prompt and nothing else.
PromptPeak prompt_peak(const Session& session, size_t tokens);

Json to_json(const PromptPeak& p);
std::string text_of(const PromptPeak& p, const std::string& policy);

}  // namespace pith::cli
