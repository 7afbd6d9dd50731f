#pragma once
// Text and token ids as they come in: from an option, a file or standard input.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "pith/model.h"
#include "pith/tokenizer.h"

namespace pith::cli {

struct TextOptions {
  std::string prompt, file;
  bool no_escape = false;
  CLI::Option* prompt_option = nullptr;
};

/// -p, -f, --no-escape.
void add_text_options(CLI::App& app, TextOptions& options, const std::string& what);
/// True if -p or -f was given, or standard input is not a terminal.
bool has_text(const TextOptions& options);
/// The text of -p, else of -f ("-" = standard input), else of standard input. Throws
/// kInvalidArgument for text that is not UTF-8, naming the byte.
std::string read_text(const TextOptions& options);

/// Everything in a file or a pipe ("-" = standard input). Throws kNotFound or kIo, also for more
/// than kMostTextBytes.
std::string read_all(const std::string& path);
/// Throws kInvalidArgument, naming the first byte, if `text` is not UTF-8.
void require_utf8(std::string_view text, const std::string& source);

/// "--ids": a JSON array, a list "1,2,3", or the name of a file that holds either. Throws
/// kInvalidArgument for anything else and for ids outside the vocabulary.
std::vector<int32_t> read_ids(const std::string& argument, int32_t vocabulary);

/// Ids of a text, with `first`, the token that begins a text, in front. `bos` of -1 leaves that to
/// the tokenizer, 0 and 1 force it.
std::vector<int32_t> encode_text(const Tokenizer& tokenizer, int32_t first, std::string_view text,
                                 int bos);
std::vector<int32_t> encode_prompt(const Model& model, std::string_view text, int bos);

/// --bos / --no-bos into the third argument of encode_prompt.
void add_bos_option(CLI::App& app, int& bos);

}  // namespace pith::cli
