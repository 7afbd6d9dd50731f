// Templates against Jinja2: every family over a matrix of conversations, and a few hundred points
// of semantics. tools/golden/make_chat_templates.py wrote what Jinja2 says.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "chat/built_in.h"
#include "chat/template.h"
#include "paths.h"

namespace pith::chat {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kData = repo_dir() / "tests" / "data" / "chat";

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const Json& golden() {
  static const Json json = Json::parse(slurp(kData / "golden.json"));
  return json;
}

std::string source_of(const std::string& name) {
  constexpr std::string_view kPrefix = "built-in ";
  if (!name.starts_with(kPrefix)) return slurp(kData / (name + ".jinja"));
  for (const BuiltIn& one : built_in_templates())
    if (one.name == name.substr(kPrefix.size())) return std::string(one.source);
  return "{{ there_is_none() }}";
}

/// 7 March 2026, 9:05:02, as the script's clock.
std::tm clock_of_the_script() {
  std::tm time{};
  time.tm_year = 126, time.tm_mon = 2, time.tm_mday = 7;
  time.tm_hour = 9, time.tm_min = 5, time.tm_sec = 2, time.tm_wday = 6, time.tm_yday = 65;
  return time;
}

std::map<std::string, Value, std::less<>> variables_of(const Json& json) {
  std::map<std::string, Value, std::less<>> out;
  const auto read = read_json(json.dump());
  for (const auto& [name, value] : read.value().dict()->items) out[name.text()->bytes()] = value;
  return out;
}

/// Pith's rendering, or nothing if it refuses.
Json rendered(const Template& tmpl, std::map<std::string, Value, std::less<>> variables,
              std::string* why = nullptr) {
  try {
    return tmpl.render(std::move(variables), clock_of_the_script).bytes();
  } catch (const Error& error) {
    if (why != nullptr) *why = error.what();
    return nullptr;
  }
}

TEST(ChatGolden, FamiliesRenderAsJinja2DoesThem) {
  std::map<std::string, std::unique_ptr<Template>> templates;
  for (const auto& [name, hash] : golden()["templates"].items())
    templates[name] = std::make_unique<Template>(source_of(name), name);
  size_t cases = 0;
  for (const Json& one : golden()["cases"]) {
    const std::string name = one[0], conversation = one[1];
    auto variables = variables_of(golden()["conversations"][conversation]);
    variables["bos_token"] = Text("<s>", Origin::kTemplate);
    variables["eos_token"] = Text("</s>", Origin::kTemplate);
    std::string why;
    const Json found = rendered(*templates[name], std::move(variables), &why);
    EXPECT_EQ(found, one[2]) << name << ", " << conversation << ": " << why;
    ++cases;
  }
  EXPECT_GT(cases, 500u);
}

TEST(ChatGolden, SnippetsRenderAsJinja2DoesThem) {
  for (const Json& one : golden()["snippets"]) {
    const std::string source = one[0];
    std::string why;
    Json found = nullptr;
    try {
      found = rendered(Template(source, "snippet"), variables_of(golden()["context"]), &why);
    } catch (const Error& error) {
      why = error.what();
    }
    EXPECT_EQ(found, one[1]) << source << ": " << why;
  }
}

}  // namespace
}  // namespace pith::chat
