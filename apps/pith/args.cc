#include "args.h"

#include <cctype>

namespace pith::cli {
namespace {

class Formatter : public CLI::Formatter {
 public:
  Formatter() { column_width(34); }

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
      {"-ctk", "--cache-type-k"}, {"-ctv", "--cache-type-v"}, {"-ub", "--ubatch-size"}};
  return aliases;
}

std::vector<std::string> read_arguments(int count, const char* const* values) {
  std::vector<std::string> arguments;
  bool options = true;  // until "--"
  for (int i = 1; i < count; ++i) {
    std::string argument = values[i];
    if (argument == "--") options = false;
    for (const auto& [alias, full] : short_aliases()) {
      if (options && argument == alias) argument = full;
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
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
