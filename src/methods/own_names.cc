#include "methods/own_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"
#include "policy/registry.h"

namespace pith {

void check_own_name(const std::string& function, const std::string& name, bool selector) {
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}('{}'): {}", function, name, why));
  };
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto good = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  if (name.empty() || !letter(name[0]) || !std::ranges::all_of(name, good))
    refuse("a name is lower-case letters, digits and _, and begins with a letter");
  for (const char* word : kSizeWords)
    if (name == word) refuse("this word says a size where policies are read");
  const auto taken = [&](const auto& rows) {
    return std::ranges::any_of(rows, [&](const auto& row) { return row.info.name == name; });
  };
  if (taken(codec_rows())) refuse("a built-in codec has this name; take another");
  if (taken(selector_rows())) refuse("a built-in selector has this name; take another");
  if (selector && find_codec(name)) refuse("a codec was added by this name; take another");
  if (!selector && find_selector(name)) refuse("a selector was added by this name; take another");
}

}  // namespace pith
