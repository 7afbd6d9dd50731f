#pragma once
// Token ids beside their texts.

#include <span>
#include <string>
#include <vector>

#include "pith/tokenizer.h"

namespace pith::cli {

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, std::span<const int32_t> ids);
/// Lines of an id and its text as JSON writes it; a part of a character as \x...
std::string pieces_table(const Tokenizer& tokenizer, std::span<const int32_t> ids);

}  // namespace pith::cli
