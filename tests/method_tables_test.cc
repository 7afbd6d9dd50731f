// The tables in docs/methods and docs/support.md are what the registry says. A page holds
//   <!-- parameters: h2o tova -->
// and behind it a table of what these methods take, or
//   <!-- support: pairs cuda 64 128 -->
// and a table of what goes with what there. PITH_WRITE_TABLES=1 writes the tables anew.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "paths.h"
#include "policy/registry.h"
#include "policy/support.h"

namespace pith {
namespace {

const std::string kParameters = "<!-- parameters:", kSupport = "<!-- support:";

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

/// The parameters of the named methods; a parameter that some of them lack says whose it is.
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

/// Reasons, numbered in the order in which tables give them.
class Notes {
 public:
  std::string cell(const std::vector<Difference>& why) {
    if (why.empty()) return "yes";
    std::vector<std::string> numbers;
    for (const Difference& d : why) {
      auto it = std::ranges::find(there_, d.there);
      if (it == there_.end()) it = there_.insert(it, d.there);
      const std::string number = std::to_string(it - there_.begin() + 1);
      if (std::ranges::count(numbers, number) == 0) numbers.push_back(number);
    }
    return fmt::format("no: {}", fmt::join(numbers, ", "));
  }
  std::string table() const {
    std::string out = "| | what there is instead, or why not |\n|---|---|\n";
    for (size_t i = 0; i < there_.size(); ++i)
      out += fmt::format("| {} | {} |\n", i + 1, ::pith::cell(there_[i]));
    return out;
  }

 private:
  std::vector<std::string> there_;
};

Device device_of(const std::string& word) { return word == "cuda" ? Device::kCuda : Device::kCpu; }

/// Lines of a table: names whose cells are equal share a line.
class Lines {
 public:
  void add(const std::string& name, const std::string& cells) {
    auto it = std::ranges::find(cells_, cells);
    if (it == cells_.end()) it = cells_.insert(it, cells), names_.emplace_back();
    auto& names = names_[static_cast<size_t>(it - cells_.begin())];
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  std::string text() const {
    std::string out;
    for (size_t i = 0; i < cells_.size(); ++i)
      out += fmt::format("| {} |{}\n", fmt::join(names_[i], ", "), cells_[i]);
    return out;
  }

 private:
  std::vector<std::string> cells_;
  std::vector<std::vector<std::string>> names_;
};

/// Every selector over every codec, where all of these head_dims agree.
std::string pairs_table(Notes& notes, Device device, const std::vector<int>& dims) {
  std::string out = "| |", line = "|---|";
  for (const CodecRow& codec : codec_rows()) out += " " + codec.info.name + " |", line += "---|";
  out += "\n" + line + "\n";
  Lines lines;
  for (const SelectorRow& selector : selector_rows()) {
    std::string cells;
    for (const CodecRow& codec : codec_rows()) {
      const auto why = why_not(selector, codec, device, dims.front());
      for (const int dim : dims)
        EXPECT_EQ(why_not(selector, codec, device, dim).empty(), why.empty())
            << selector.info.name << "+" << codec.info.name << " at " << dim;
      cells += " " + notes.cell(why) + " |";
    }
    lines.add(selector.info.name, cells);
  }
  return out + lines.text();
}

/// Sliding layers and protected rows: selectors over f16, codecs under exact.
std::string features_table(Notes& notes) {
  const std::string head =
      "| | sliding layers, CPU | sliding layers, GPU | protected rows, CPU | protected rows, GPU "
      "|\n"
      "|---|---|---|---|---|\n";
  Lines lines;
  const auto line = [&](const std::string& name, const SelectorRow& selector,
                        const CodecRow& codec) {
    std::string cells;
    for (const Feature feature : {Feature::kSliding, Feature::kProtect})
      for (const Device device : {Device::kCpu, Device::kCuda})
        cells += " " + notes.cell(why_not(selector, codec, device, 64, feature)) + " |";
    lines.add(name, cells);
  };
  for (const SelectorRow& selector : selector_rows())
    line(selector.info.name, selector, codec_row("f16"));
  for (const CodecRow& codec : codec_rows())
    line("exact+" + codec.info.name, selector_row("exact"), codec);
  return head + lines.text();
}

std::string limits_table() {
  Lines lines;
  for (const CodecRow& codec : codec_rows())
    for (const Limit& limit : limits_on_gpu(codec.info.name))
      lines.add(codec.info.name, fmt::format(" `{}` | {} |", limit.parameter, limit.there));
  const size_t halves = DeviceOffers::of(Device::kCuda).halves;
  for (const SelectorRow& selector : selector_rows()) {
    const CacheShape shape{1, 1, 1, 64, {}, 1000};
    const CohortPolicy policy =
        place_rule(pair_rule(selector, codec_row("f16"), 1000), {shape, 0, {0}, 0, Device::kCuda});
    if (policy.selector.needs.halves > 0)
      lines.add(selector.info.name, fmt::format(" rows halved at once | up to {} |", halves));
  }
  return "| | parameter | the GPU takes |\n|---|---|---|\n" + lines.text();
}

/// The needs of selectors, and the offers of keys and values of codecs on the GPU.
std::string needs_table() {
  Lines lines;
  const CacheShape shape{1, 1, 1, 64, {}, 1000};
  for (const SelectorRow& selector : selector_rows()) {
    const PolicyRule rule = pair_rule(selector, codec_row("f16"), 1000);
    const CohortPolicy policy = place_rule(rule, {shape, 0, {0}, 0, Device::kCuda});
    lines.add("`" + to_string(rule.selector) + "`", " " + policy.selector.needs.text() + " |");
  }
  return "| selector | needs |\n|---|---|\n" + lines.text();
}
std::string offers_table() {
  Lines lines;
  for (const CodecRow& codec : codec_rows()) {
    if (!codec.on_gpu) continue;
    const MethodOptions options = codec.read({codec.info.name, {}});
    const std::string k = codec.on_gpu(options, {Side::kKeys, 64}).text(),
                      v = codec.on_gpu(options, {Side::kValues, 64}).text();
    const auto behind_name = [](const std::string& text) {
      return text.substr(text.find(": ") + 2);
    };
    const std::string& name = codec.info.name;
    lines.add(k == v ? name : name + "'s keys", " " + behind_name(k) + " |");
    if (k != v) lines.add(name + "'s values", " " + behind_name(v) + " |");
  }
  return "| codec | what it offers |\n|---|---|\n" + lines.text();
}

std::string support_of(Notes& notes, const std::vector<std::string>& words) {
  const std::string& what = words.front();
  if (what == "features") return features_table(notes);
  if (what == "limits") return limits_table();
  if (what == "needs") return needs_table();
  if (what == "offers") return offers_table();
  if (what == "notes") return notes.table();
  std::vector<int> dims;
  for (size_t i = 2; i < words.size(); ++i) dims.push_back(std::stoi(words[i]));
  return pairs_table(notes, device_of(words[1]), dims);
}

struct Page {
  std::string text;  ///< with the tables as they should be
  bool same = true;  ///< as they are
  std::set<std::string> documented;
};

Page read_page(const std::filesystem::path& path) {
  std::ifstream in(path);
  Page page;
  Notes notes;
  std::string old, line;
  bool more = static_cast<bool>(std::getline(in, line));
  while (more) {
    page.text += line + "\n";
    old += line + "\n";
    const bool support = line.starts_with(kSupport);
    const bool marked = (support || line.starts_with(kParameters)) && line.ends_with(" -->");
    const size_t begin = (support ? kSupport : kParameters).size();
    const std::string names = marked ? line.substr(begin, line.size() - begin - 4) : "";
    more = static_cast<bool>(std::getline(in, line));
    if (!marked) continue;
    for (; more && line.starts_with("|"); more = static_cast<bool>(std::getline(in, line)))
      old += line + "\n";
    page.text += support ? support_of(notes, words_of(names)) : table_of(words_of(names));
    if (support) continue;
    for (const std::string& name : words_of(names)) page.documented.insert(name);
  }
  page.same = page.text == old;
  return page;
}

TEST(MethodTables, AreWhatTheRegistrySays) {
  std::vector<std::filesystem::path> paths{repo_dir() / "docs/support.md"};
  for (const auto& entry : std::filesystem::directory_iterator(repo_dir() / "docs/methods"))
    if (entry.path().extension() == ".md") paths.push_back(entry.path());
  std::set<std::string> documented;
  for (const std::filesystem::path& path : paths) {
    const Page page = read_page(path);
    documented.insert(page.documented.begin(), page.documented.end());
    if (std::getenv("PITH_WRITE_TABLES")) std::ofstream(path) << page.text;
    EXPECT_TRUE(page.same) << path << " differs; PITH_WRITE_TABLES=1 "
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
