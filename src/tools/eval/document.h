#pragma once
// A long document: sentences made from templates, with facts hidden in between. Needle and
// question have RULER's wording (Hsieh et al. 2024, plural form), which the demo model was trained
// on; everything else is made here. A pure function of the seed.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pith {

struct HiddenFact {
  std::string key, value;
  double depth = 0;  ///< share of the document that lies before it
  /// The text behind the document that asks for the value; the answer goes on with " VALUE.".
  std::string question() const;
};

struct DemoDocument {
  std::string text;
  std::vector<HiddenFact> facts;
};

/// `count_tokens` says how long a text is; the document has about `tokens` of them.
DemoDocument make_document(size_t tokens, size_t facts, uint64_t seed,
                           const std::function<size_t(const std::string&)>& count_tokens);

}  // namespace pith
