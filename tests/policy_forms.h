#pragma once
// For tests that hold for every policy: all selectors and codecs that the registry has.

#include <string>
#include <vector>

#include "policy/registry.h"

namespace pith::test {

/// Every selector over plain and coded rows, and every codec: of both sides under exact, and of
/// values beside int8 keys under `mixed`.
inline std::vector<std::string> registered_forms(const std::string& mixed) {
  std::vector<std::string> all;
  for (const SelectorRow& row : selector_rows()) {
    std::string text = row.info.name;
    const std::string& size = row.info.size_parameter;
    if (!size.empty()) text += "(" + size + (size == "rate" ? "=0.25)" : "=96)");
    all.push_back(text);
    all.push_back(text + "+int4" + (row.owns_window ? "" : ",window=16"));
  }
  for (const CodecRow& row : codec_rows()) {
    const std::string codec = row.info.name == "csr" ? "csr(online=32)" : row.info.name;
    all.push_back("exact+" + codec);
    all.push_back(mixed + "+k:int8+v:" + codec + ",sink=4,window=32");
  }
  return all;
}

}  // namespace pith::test
