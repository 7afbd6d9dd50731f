#include "tools/eval/reproduce_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr const char* kPaperMark = "*";
constexpr const char* kPaperNote = "* the paper's own number: another model, often another metric";

size_t columns_wide(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool has_paper(const ReproducedTable& t) {
  return std::any_of(t.columns.begin(), t.columns.end(), [](const Column& c) { return c.paper; });
}

std::string heading(const Column& c) { return c.name + (c.paper ? kPaperMark : ""); }

const char* verdict(const Claim& c) { return !c.holds ? "open" : *c.holds ? "yes" : "NO"; }

// Text between Markdown's bars.
std::string in_bars(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

}  // namespace

std::string cell_text(const Cell& cell, const Column& column) {
  if (!cell.value) return "";
  // Three places more where the digits asked for would show nothing of a small number.
  const int digits = *cell.value != 0 && std::abs(*cell.value) < 0.5 * std::pow(10, -column.digits)
                         ? column.digits + 3
                         : column.digits;
  std::string text = fmt::format("{:.{}f}", *cell.value, digits);
  // Equal seeds may differ by rounding.
  const double error = cell.error > 0 ? cell.error : cell.deviation;
  if (error > 1e-9 * std::abs(*cell.value)) text += fmt::format(" ±{:.{}f}", error, digits);
  return text;
}

std::string table_text(const ReproducedTable& t) {
  std::vector<std::vector<std::string>> lines{{""}};
  for (const Column& c : t.columns) lines[0].push_back(heading(c));
  for (const TableRow& row : t.rows) {
    std::vector<std::string>& line = lines.emplace_back(1, row.name);
    for (size_t c = 0; c < t.columns.size(); ++c)
      line.push_back(cell_text(row.cells[c], t.columns[c]));
  }
  std::vector<size_t> width(t.columns.size() + 1);
  for (const auto& line : lines)
    for (size_t c = 0; c < line.size(); ++c) width[c] = std::max(width[c], columns_wide(line[c]));
  std::string out = fmt::format("{}\n{}\n\n", t.title, t.source);
  for (const auto& line : lines) {
    std::string text;
    for (size_t c = 0; c < line.size(); ++c) {
      const std::string space(width[c] - columns_wide(line[c]), ' ');
      text += c == 0 ? line[c] + space : "  " + space + line[c];
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  out += "\n";
  for (const Claim& c : t.claims)
    out +=
        fmt::format("{:>4}  {}{}: {}\n", verdict(c), c.paper,
                    c.form == Form::kNone ? "" : fmt::format(" ({})", form_name(c.form)), c.ours);
  return out + fmt::format("{}\n{}{}", t.protocol, has_paper(t) ? kPaperNote : "",
                           has_paper(t) ? "\n" : "");
}

std::string table_markdown(const ReproducedTable& t) {
  std::string out =
      fmt::format("## {}\n\nPaper: {}.\n\nOurs: {}.\n\n|", t.title, t.source, t.protocol);
  out += " |";
  for (const Column& c : t.columns) out += fmt::format(" {} |", in_bars(heading(c)));
  out += "\n|---|";
  for (size_t c = 0; c < t.columns.size(); ++c) out += "--:|";
  out += "\n";
  for (const TableRow& row : t.rows) {
    out += fmt::format("| {}{} |", in_bars(row.name),
                       row.policy.empty() || row.policy == row.name
                           ? ""
                           : fmt::format(", `{}`", in_bars(row.policy)));
    for (size_t c = 0; c < t.columns.size(); ++c)
      out += fmt::format(" {} |", cell_text(row.cells[c], t.columns[c]));
    out += "\n";
  }
  if (has_paper(t)) out += fmt::format("\n\\{}.\n", kPaperNote);
  if (t.claims.empty()) return out;
  out += "\n| the paper says | form | holds here | ours | policy |\n|---|---|---|---|---|\n";
  for (const Claim& c : t.claims)
    out += fmt::format("| {} | {} | {} | {} | {} |\n", in_bars(c.paper), form_name(c.form),
                       verdict(c), in_bars(c.ours),
                       c.policy.empty() ? "" : fmt::format("`{}`", in_bars(c.policy)));
  return out;
}

Record table_record(const ReproducedTable& t) {
  Record rows = Record::array(), claims = Record::array();
  for (const TableRow& row : t.rows) {
    Record cells = Record::array();
    for (size_t c = 0; c < t.columns.size(); ++c) {
      const Cell& cell = row.cells[c];
      if (!cell.value) continue;
      Record one{{"column", t.columns[c].name}, {"value", *cell.value}};
      if (cell.deviation > 0) one["deviation"] = cell.deviation;
      if (cell.error > 0) one["error"] = cell.error;
      if (t.columns[c].paper) one["paper"] = true;
      cells.push_back(one);
    }
    rows.push_back({{"name", row.name}, {"policy", row.policy}, {"cells", cells}});
  }
  for (const Claim& c : t.claims)
    claims.push_back({{"paper", c.paper},
                      {"ours", c.ours},
                      {"holds", c.holds ? Record(*c.holds) : Record()},
                      {"form", form_name(c.form)},
                      {"policy", c.policy}});
  return {{"table", t.id},          {"title", t.title}, {"source", t.source},
          {"protocol", t.protocol}, {"rows", rows},     {"claims", claims}};
}

}  // namespace pith
