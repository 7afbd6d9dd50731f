#pragma once
// Regular expressions of tokenizer.json, written for Oniguruma with Ruby's syntax, in ICU's terms.
// The two differ in what \s, ., ^ and some escapes mean, and in the age of their Unicode tables;
// what cannot be said the same in both is refused. Of the properties, letters, numbers, marks,
// punctuation and symbols are brought up to the library's Unicode 16; others are those of the ICU
// in use.

#include <unicode/regex.h>

#include <memory>
#include <string>
#include <string_view>

namespace pith {

/// ICU's spelling of `pattern`. Throws kUnsupported for a construct that is not known here.
std::string to_icu_regex(std::string_view pattern);

/// Compiles a pattern of tokenizer.json. Throws kUnsupported.
std::unique_ptr<icu::RegexPattern> compile_regex(std::string_view pattern);

}  // namespace pith
