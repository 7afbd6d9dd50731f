#pragma once
// Scores of an answer against references, 0 to 1, as the benchmarks' own code defines them: RULER
// (string_match_all and _part), LongBench (F1, ROUGE-L of the PyPI package rouge 1.0.1,
// classification, edit similarity of fuzzywuzzy), lost-in-the-middle (best substring match), and
// the boxed answer of MATH. The better of several references counts unless said otherwise.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pith {

enum class Metric : uint8_t {
  kContainsAll,     ///< share of the references that the answer contains, any case
  kContainsAny,     ///< whether it contains one, any case
  kExact,           ///< equal after normalising (LongBench's, SQuAD's)
  kF1,              ///< of normalised words
  kRougeL,          ///< F of rouge 1.0.1's summary-level ROUGE-L
  kRouge1Recall,    ///< share of the reference's distinct words
  kClassification,  ///< 1/k if the right one of k classes named
  kEditSimilarity,  ///< of the first line of code
  kBoxed,           ///< last \boxed{...} equals the reference
};
/// "contains_all", ...: as in result files.
const char* to_string(Metric metric);

/// `classes` is for kClassification only.
double score_answer(Metric metric, std::string_view answer, std::span<const std::string> references,
                    std::span<const std::string> classes = {});

/// Lower case, without ASCII punctuation and the words a, an, the; single spaces.
std::string normalise_answer(std::string_view text);
/// The text in the last \boxed{...} (or \boxed x); empty if there is none.
std::string boxed_answer(std::string_view text);

}  // namespace pith
