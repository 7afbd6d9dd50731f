// The tables of parameters in docs/methods are what the registry says. A page holds
//   <!-- parameters: h2o tova -->
// and behind it a table of what these methods take. PITH_WRITE_TABLES=1 writes the tables anew.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "compress/registry.h"
#include "paths.h"

namespace pith {
namespace {

const std::string kMarker = "<!-- parameters:";

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// A pipe would end the cell.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

/// Every selector and codec, as the registry has them.
std::vector<const MethodRow*> method_rows() {
  std::vector<const MethodRow*> rows;
  for (const SelectorRow& row : selector_rows()) rows.push_back(&row);
  for (const CodecRow& row : codec_rows()) rows.push_back(&row);
  return rows;
}

struct Parameter {
  ParameterInfo info;
  std::string accepts;
};

std::string row_of(const Parameter& parameter, const std::string& whose) {
  const ParameterInfo& p = parameter.info;
  const std::string value = p.default_value.empty() ? "" : "`" + p.default_value + "`";
  return fmt::format("| `{}`{} | {} | {} | {} |\n", p.name, whose, value, cell(parameter.accepts),
                     cell(p.help));
}

/// What the named methods take; a parameter that some of them lack says whose it is.
std::string table_of(const std::vector<std::string>& names) {
  std::vector<Parameter> all;
  std::map<std::string, std::vector<std::string>> owners;  // by the row's text
  for (const MethodRow* m : method_rows()) {
    if (std::find(names.begin(), names.end(), m->info.name) == names.end()) continue;
    for (size_t i = 0; i < m->info.parameters.size(); ++i) {
      const Parameter p{m->info.parameters[i], m->accepts[i]};
      auto& whose = owners[row_of(p, "")];
      if (whose.empty()) all.push_back(p);
      whose.push_back(m->info.name);
    }
  }
  std::string out = "| parameter | default | accepts | meaning |\n|---|---|---|---|\n";
  for (const Parameter& p : all) {
    const auto& whose = owners[row_of(p, "")];
    out +=
        row_of(p, whose.size() == names.size() ? "" : fmt::format(" ({})", fmt::join(whose, ", ")));
  }
  return out;
}

struct Page {
  std::string text;  ///< with the tables as they should be
  bool same = true;  ///< as they are
  std::set<std::string> documented;
};

Page read_page(const std::filesystem::path& path) {
  std::ifstream in(path);
  Page page;
  std::string old, line;
  bool more = static_cast<bool>(std::getline(in, line));
  while (more) {
    page.text += line + "\n";
    old += line + "\n";
    const bool marked = line.starts_with(kMarker) && line.ends_with(" -->");
    const std::string names =
        marked ? line.substr(kMarker.size(), line.size() - kMarker.size() - 4) : "";
    more = static_cast<bool>(std::getline(in, line));
    if (!marked) continue;
    for (; more && line.starts_with("|"); more = static_cast<bool>(std::getline(in, line)))
      old += line + "\n";
    page.text += table_of(words_of(names));
    for (const std::string& name : words_of(names)) page.documented.insert(name);
  }
  page.same = page.text == old;
  return page;
}

TEST(MethodTables, AreWhatTheRegistrySays) {
  std::set<std::string> documented;
  for (const auto& entry : std::filesystem::directory_iterator(repo_dir() / "docs/methods")) {
    if (entry.path().extension() != ".md") continue;
    const Page page = read_page(entry.path());
    documented.insert(page.documented.begin(), page.documented.end());
    if (std::getenv("PITH_WRITE_TABLES")) std::ofstream(entry.path()) << page.text;
    EXPECT_TRUE(page.same) << entry.path() << " differs; PITH_WRITE_TABLES=1 "
                           << "build/bin/method_tables_test writes its tables anew";
  }
  for (const MethodInfo& m : methods())
    EXPECT_TRUE(m.parameters.empty() || documented.contains(m.name))
        << m.name << " has no table in docs/methods";
}

TEST(MethodTables, EveryParameterSaysWhatItAcceptsAndAcceptsItsDefault) {
  for (const MethodRow* m : method_rows()) {
    ASSERT_EQ(m->accepts.size(), m->info.parameters.size());
    for (size_t i = 0; i < m->accepts.size(); ++i) {
      const ParameterInfo& p = m->info.parameters[i];
      EXPECT_FALSE(m->accepts[i].empty()) << m->info.name << "." << p.name;
      EXPECT_FALSE(p.help.empty()) << m->info.name << "." << p.name;
      if (!p.default_value.empty()) {
        EXPECT_NO_THROW(m->read({m->info.name, {{p.name, p.default_value}}})) << p.name;
      }
    }
  }
}

}  // namespace
}  // namespace pith
