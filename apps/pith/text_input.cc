#include "text_input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "args.h"
#include "interrupt.h"
#include "model/tokenizer_utf8.h"
#include "pith/error.h"

namespace pith::cli {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

void add_text_options(CLI::App& app, TextOptions& options, const std::string& what) {
  options.prompt_option =
      app.add_option("-p,--prompt", options.prompt, what)->type_name("TEXT")->group("Input");
  auto* file = app.add_option("-f,--file", options.file,
                              "Read it from a file; - or neither option: from standard input")
                   ->type_name("FILE")
                   ->group("Input");
  options.prompt_option->excludes(file);
  app.add_flag("--no-escape,!-e,!--escape", options.no_escape,
               "Take \\n, \\t, \\\\ ... in options literally (-e, the default, reads them as "
               "newline, tab, backslash ...)")
      ->group("Input");
}

bool has_text(const TextOptions& o) {
  return o.prompt_option->count() > 0 || !o.file.empty() || isatty(STDIN_FILENO) == 0;
}

std::string read_text(const TextOptions& o) {
  if (o.prompt_option->count() > 0) {
    std::string text = o.no_escape ? o.prompt : unescape(o.prompt);
    require_utf8(text, "the prompt");
    return text;
  }
  const std::string path = o.file.empty() ? "-" : o.file;
  std::string text = read_all(path);
  require_utf8(text, path == "-" ? "standard input" : path);
  return text;
}

std::string read_all(const std::string& path) {
  const auto fail = [&](int error) {
    throw Error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("cannot read {}: {}", path == "-" ? "standard input" : path,
                            std::strerror(error)));
  };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> owned(nullptr, std::fclose);
  std::FILE* in = stdin;
  if (path != "-") {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) fail(EISDIR);
    owned.reset(std::fopen(path.c_str(), "rb"));
    if (owned == nullptr) fail(errno);
    in = owned.get();
  }
  std::string text;
  char buffer[1 << 16];
  size_t n;
  while ((n = std::fread(buffer, 1, sizeof buffer, in)) > 0) text.append(buffer, n);
  if (std::ferror(in) != 0) fail(errno);
  return text;
}

void write_file(const std::string& path, std::string_view text) {
  std::FILE* out = std::fopen(path.c_str(), "wb");
  const bool written =
      out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
  const bool closed = out != nullptr && std::fclose(out) == 0;
  if (written && closed) return;
  throw Error(ErrorCode::kIo, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

void require_utf8(std::string_view text, const std::string& source) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Kind::kValid) {
      refuse(
          fmt::format("{} is not valid UTF-8: byte 0x{:02x} at offset {}; convert it first, e.g. "
                      "with iconv -t UTF-8",
                      source, static_cast<unsigned char>(text[at]), at));
    }
    at += step.length;
  }
}

std::vector<int32_t> read_ids(const std::string& argument, int32_t vocabulary) {
  const bool literal = argument.find_first_not_of("0123456789-, \t\n[]") == std::string::npos;
  std::string text = literal && argument != "-" ? argument : read_all(argument);
  const std::string source = literal ? "--ids" : argument;
  if (text.find('[') == std::string::npos) text = "[" + text + "]";
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_array()) {
    refuse(fmt::format("{} holds no list of token ids; wanted: [1, 2, 3], or 1,2,3", source));
  }
  std::vector<int32_t> ids;
  for (const auto& value : parsed) {
    const bool known =
        value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() < vocabulary;
    if (!known) {
      refuse(fmt::format("{}: {} is not a token id; this model has ids 0 to {}", source,
                         value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                         vocabulary - 1));
    }
    ids.push_back(value.get<int32_t>());
  }
  if (ids.empty()) refuse(source + " holds no token ids; at least one is needed");
  return ids;
}

std::vector<int32_t> encode_text(const Tokenizer& tokenizer, int32_t first, std::string_view text,
                                 int bos) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  const bool wanted = bos == 1 || (bos == -1 && tokenizer.add_bos());
  if (wanted && first < 0) refuse("--bos: this model has no token that begins a text");
  // A text that spells the token out already has it.
  if (wanted && (ids.empty() || ids[0] != first)) ids.insert(ids.begin(), first);
  return ids;
}

std::vector<int32_t> encode_prompt(const Model& model, std::string_view text, int bos) {
  const Tokenizer& tokenizer = model.tokenizer();
  const int32_t first = tokenizer.bos() >= 0 ? tokenizer.bos() : model.config().bos;
  return encode_text(tokenizer, first, text, bos);
}

void add_bos_option(CLI::App& app, int& bos) {
  app.add_flag("--bos{1},--no-bos{0}", bos,
               "Put the model's beginning-of-text token in front, or not (default: as the "
               "tokenizer says)")
      ->group("Input");
  bos = -1;  // add_flag counts, and sets its variable to 0
}

}  // namespace pith::cli
