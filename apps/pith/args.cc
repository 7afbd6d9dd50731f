#include "args.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>

#include "console.h"
#include "llama_options.h"

namespace pith::cli {
namespace {

class Formatter : public CLI::Formatter {
  static constexpr size_t kNames = 30, kWidth = 80;

  // A name and what it means beside it, in lines of 80 columns.
  static std::string laid_out(const std::string& name, const std::string& meaning) {
    const std::string margin(kNames, ' ');
    std::string out = "  " + name;
    out += out.size() < kNames ? std::string(kNames - out.size(), ' ') : "\n" + margin;
    for (const char c : wrapped(meaning, 0, kWidth - kNames))
      out += c == '\n' ? "\n" + margin : std::string(1, c);
    return out + "\n";
  }

 public:
  Formatter() { column_width(kNames); }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    return laid_out(make_option_name(option, positional) + make_option_opts(option),
                    make_option_desc(option));
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return laid_out(command->get_name(), command->get_description());
  }

  // Without "INT in [0 - 1099511627776]": a value out of range is told of when it is given.
  std::string make_option_opts(const CLI::Option* option) const override {
    static const std::regex kRange(":?(INT|UINT|FLOAT) (in|bounded to) \\[[^\\]]*\\]");
    return std::regex_replace(CLI::Formatter::make_option_opts(option), kRange, "");
  }

  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, positional);
    if (positional) return name;
    for (const auto& [alias, full] : short_aliases()) {
      if (option->check_lname(full.substr(2))) return alias + "," + name;
    }
    return name;
  }
};

int hex_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) ? c - '0' : std::tolower(c) - 'a' + 10;
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& short_aliases() {
  static const std::vector<std::pair<std::string, std::string>> aliases{
      {"-ctk", "--cache-type-k"}, {"-ctv", "--cache-type-v"}, {"-np", "--parallel"},
      {"-ub", "--ubatch-size"},   {"-sys", "--system"},       {"-sysf", "--system-file"},
      {"-st", "--single-turn"},   {"-jf", "--json-schema"}};
  return aliases;
}

std::vector<std::string> read_arguments(int count, const char* const* values) {
  std::vector<std::string> arguments(values + 1, values + std::max(count, 1));
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  return arguments;
}

CLI::Validator number_from(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    double value = 0;
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return fits ? "" : fmt::format("{} is not a number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, "");
}

CLI::Validator not_negative() {
  const auto check = [](const std::string& text) {
    return text.find('-') == std::string::npos
               ? ""
               : fmt::format("{} is not a whole number of 0 or more", text);
  };
  return CLI::Validator(check, "");
}

CLI::Validator not_empty() {
  const auto check = [](const std::string& text) {
    return text.empty() ? std::string("nothing was given; leave the option out or give a value")
                        : std::string();
  };
  return CLI::Validator(check, "");
}

CLI::Validator storage_type(const std::string& option) {
  const auto check = [option](const std::string& text) -> std::string {
    for (const char* type : {"f32", "f16", "bf16"})
      if (text == type) return "";
    if (codec_of_type(text) != nullptr) return "";
    const std::string instead = instead_of_type(option, text);
    return !instead.empty() ? instead
                            : text +
                                  " is not f32, f16, bf16, q8_0 or q4_0; other codecs are said "
                                  "in --kv-policy ('pith policies')";
  };
  return CLI::Validator(check, "");
}

std::string unescape(std::string_view text) {
  static constexpr std::string_view kLetters = "nrt\\'\"", kMeanings = "\n\r\t\\'\"";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const size_t known = next == '\0' ? std::string_view::npos : kLetters.find(next);
    if (known != std::string_view::npos) {
      out += kMeanings[known];
      ++i;
    } else if (next == 'x' && i + 3 < text.size() &&
               std::isxdigit(static_cast<unsigned char>(text[i + 2])) &&
               std::isxdigit(static_cast<unsigned char>(text[i + 3]))) {
      out += static_cast<char>(hex_digit(text[i + 2]) * 16 + hex_digit(text[i + 3]));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::shared_ptr<CLI::FormatterBase> make_formatter() { return std::make_shared<Formatter>(); }

}  // namespace pith::cli
