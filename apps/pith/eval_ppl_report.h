#pragma once
// The tables and the JSON of pith eval ppl.

#include <string>
#include <vector>

#include "eval.h"
#include "report.h"
#include "tools/eval/perplexity.h"

namespace pith::cli {

/// One run over all pieces.
struct RunTotal {
  EvalRun run;
  std::vector<Prediction> predictions;
  std::vector<size_t> pieces;  // predictions of each
  Ledger ledger;               // of the last piece
  std::string resolved;
  std::vector<AttentionError> errors;  // of the last piece, if probed
  double seconds = 0;
  bool dropped = false;   // the same as the policy's first seed
  bool drawless = false;  // of a first seed: known to predict the same with others

  void add(const PieceResult& piece) {
    predictions.insert(predictions.end(), piece.predictions.begin(), piece.predictions.end());
    pieces.push_back(piece.predictions.size());
    ledger = piece.ledger, resolved = piece.policy, errors = piece.attention_errors;
    seconds += piece.seconds;
  }
  PredictionSummary summary() const { return summarise(predictions, pieces); }
};
/// The seeds of one policy, at least one.
using SeedRuns = std::vector<const RunTotal*>;

/// The table with its legend, then how far each policy is from the best, then every figure if
/// asked.
std::string ppl_text(const std::vector<SeedRuns>& groups, bool with_details);
/// "policies", and with several the "best".
Json ppl_json(const std::vector<SeedRuns>& groups);

}  // namespace pith::cli
