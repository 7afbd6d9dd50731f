#include "text_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "args.h"
#include "core/json_file.h"
#include "core/utf8.h"
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
  const std::string name = path == "-" ? "standard input" : path;
  const auto fail = [&](int error, const std::string& why) {
    throw Error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("cannot read {}: {}", name, why));
  };
  std::error_code no;
  if (path != "-" && std::filesystem::is_regular_file(path, no))
    return read_file(path, kMostTextBytes);
  // A pipe is waited for, as <(zcat book.gz) wants it; signals end the wait.
  const int in = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (in < 0) fail(errno, std::strerror(errno));
  const std::unique_ptr<const int, void (*)(const int*)> owner(&in, [](const int* d) {
    if (*d != STDIN_FILENO) ::close(*d);
  });
  if (path != "-" && std::filesystem::is_character_file(path, no))
    fail(0, "it is a device; name a file or a pipe");
  std::string text;
  std::vector<char> buffer(size_t{1} << 20);
  for (ssize_t n; (n = ::read(in, buffer.data(), buffer.size())) != 0;) {
    if (n < 0) fail(errno, std::strerror(errno));
    text.append(buffer.data(), static_cast<size_t>(n));
    if (text.size() > kMostTextBytes)
      fail(0, fmt::format("it has more than {} bytes", kMostTextBytes));
  }
  return text;
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
  check_json_depth(text, source);
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
  // Callbacks: as the value of a flag CLI11 reads 0 as "false", which is -1 to it.
  bos = -1;
  app.add_flag_callback(
         "--bos", [&bos] { bos = 1; },
         "Put the model's beginning-of-text token in front (default: the tokenizer's rule)")
      ->group("Input");
  app.add_flag_callback(
         "--no-bos", [&bos] { bos = 0; }, "Do not put it in front")
      ->group("Input");
}

}  // namespace pith::cli
