#include "conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "text_input.h"

namespace pith::cli {

void drop_last_break(std::string& text) {
  if (!text.ends_with('\n')) return;
  text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
}

Dialogue::Json read_messages(const std::string& path) {
  return Dialogue::parse_messages(read_all(path), path);
}

std::string describe_messages(const Dialogue::Json& messages) {
  std::vector<std::pair<std::string, size_t>> roles;
  for (const auto& message : messages) {
    const std::string role = message["role"];
    const auto at = std::ranges::find(roles, role, &std::pair<std::string, size_t>::first);
    if (at == roles.end())
      roles.emplace_back(role, 1);
    else
      ++at->second;
  }
  std::string parts;
  for (const auto& [role, count] : roles)
    parts += fmt::format("{}{} of {}", parts.empty() ? "" : ", ", count, role);
  return fmt::format("{} {}{}", messages.size(), messages.size() == 1 ? "message" : "messages",
                     parts.empty() ? "" : " (" + parts + ")");
}

bool is_session(const std::string& path) {
  std::string begin(8, '\0');
  std::ifstream(path).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == "PITHSES1";
}

}  // namespace pith::cli
