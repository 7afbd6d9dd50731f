#include "tools/eval/metrics.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "pith/error.h"

namespace pith {
namespace {

using Words = std::vector<std::string>;

// ASCII only, as the benchmarks' English references need.
std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

Words words_of(std::string_view text) {
  Words words;
  for (size_t i = 0; i < text.size();) {
    while (i < text.size() && is_space(text[i])) ++i;
    const size_t start = i;
    while (i < text.size() && !is_space(text[i])) ++i;
    if (i > start) words.emplace_back(text.substr(start, i - start));
  }
  return words;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(lower(part)) != std::string::npos;
}

double f_score(double overlap, double answer, double reference) {
  if (overlap == 0 || answer == 0 || reference == 0) return 0;
  const double p = overlap / answer, r = overlap / reference;
  return 2 * p * r / (p + r);
}

double f1(std::string_view answer, std::string_view reference) {
  const Words a = words_of(normalise_answer(answer)), b = words_of(normalise_answer(reference));
  std::map<std::string, int> left;
  for (const auto& w : b) ++left[w];
  double common = 0;
  for (const auto& w : a)
    if (auto found = left.find(w); found != left.end() && found->second-- > 0) ++common;
  return f_score(common, static_cast<double>(a.size()), static_cast<double>(b.size()));
}

// Full stops end sentences; each is a list of words.
std::vector<Words> sentences_of(std::string_view text) {
  std::vector<Words> sentences;
  for (size_t start = 0; start <= text.size();) {
    const size_t stop = std::min(text.find('.', start), text.size());
    if (stop > start) {
      Words words = words_of(text.substr(start, stop - start));
      if (words.empty()) words.emplace_back();  // the package keeps blank sentences as one word
      sentences.push_back(std::move(words));
    }
    start = stop + 1;
  }
  return sentences;
}

std::set<std::string> distinct(const std::vector<Words>& sentences) {
  std::set<std::string> all;
  for (const Words& s : sentences) all.insert(s.begin(), s.end());
  return all;
}

// Words of one longest common subsequence; among equals the one that keeps late words of `a`.
void add_common(std::set<std::string>& found, const Words& a, const Words& b) {
  std::vector<std::vector<int>> length(a.size() + 1, std::vector<int>(b.size() + 1, 0));
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j)
      length[i][j] = a[i - 1] == b[j - 1] ? length[i - 1][j - 1] + 1
                                          : std::max(length[i - 1][j], length[i][j - 1]);
  for (size_t i = a.size(), j = b.size(); i > 0 && j > 0;) {
    if (a[i - 1] == b[j - 1]) {
      found.insert(a[i - 1]);
      --i, --j;
    } else if (length[i - 1][j] > length[i][j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

// Lin's union LCS over all pairs of sentences, on sets of words as rouge 1.0.1 counts.
double rouge_l(std::string_view answer, std::string_view reference) {
  const auto a = sentences_of(answer), b = sentences_of(reference);
  if (a.empty() || b.empty()) return 0;
  std::set<std::string> common;
  for (const Words& r : b)
    for (const Words& s : a) add_common(common, r, s);
  const auto n = static_cast<double>(common.size());
  const double p = n / static_cast<double>(distinct(a).size());
  const double r = n / static_cast<double>(distinct(b).size());
  return 2 * p * r / (p + r + 1e-8);
}

double rouge_1_recall(std::string_view answer, std::string_view reference) {
  const auto a = distinct(sentences_of(answer)), b = distinct(sentences_of(reference));
  if (b.empty()) return 0;
  double common = 0;
  for (const auto& w : b) common += a.count(w) > 0 ? 1 : 0;
  return common / static_cast<double>(b.size());
}

// LongBench's: classes named in the answer, less those that are part of the reference's own name.
double classification(std::string_view answer, const std::string& reference,
                      std::span<const std::string> classes) {
  size_t named = 0;
  bool right = false;
  for (const std::string& c : classes) {
    if (answer.find(c) == std::string_view::npos) continue;
    if (c != reference && reference.find(c) != std::string::npos) continue;
    ++named;
    right = right || c == reference;
  }
  return right ? 1.0 / static_cast<double>(named) : 0;
}

// The first line that is neither a comment nor a code fence.
std::string code_line(std::string_view answer) {
  size_t start = 0;
  while (start < answer.size() && answer[start] == '\n') ++start;
  while (start <= answer.size()) {
    const size_t end = std::min(answer.find('\n', start), answer.size());
    const auto line = answer.substr(start, end - start);
    const auto npos = std::string_view::npos;
    if (line.find('`') == npos && line.find('#') == npos && line.find("//") == npos)
      return std::string(line);
    start = end + 1;
  }
  return "";
}

// fuzzywuzzy's ratio over rapidfuzz and over python-Levenshtein: 2 LCS / (length of both), per
// cent, rounded.
double edit_similarity(std::string_view answer, std::string_view reference) {
  const std::string a = code_line(answer);
  if (a.empty() || reference.empty()) return 0;
  std::vector<size_t> row(reference.size() + 1, 0);
  for (char c : a) {
    size_t diagonal = 0;
    for (size_t j = 1; j <= reference.size(); ++j) {
      const size_t up = row[j];
      row[j] = c == reference[j - 1] ? diagonal + 1 : std::max(up, row[j - 1]);
      diagonal = up;
    }
  }
  const double share =
      2.0 * static_cast<double>(row.back()) / static_cast<double>(a.size() + reference.size());
  return std::nearbyint(100 * share) / 100;
}

std::string without_spaces(std::string_view text) {
  std::string out;
  for (char c : text)
    if (!is_space(c)) out += c;
  return out;
}

/// Without what MATH's answers write or leave out at will: spaces, sizes of brackets, signs of
/// dollars, degrees and per cent, display fractions, a full stop at the end.
std::string math_form(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kSame{
      {{"\\left", ""},
       {"\\right", ""},
       {"\\!", ""},
       {"\\,", ""},
       {"\\;", ""},
       {"\\$", ""},
       {"$", ""},
       {"\\%", ""},
       {"^{\\circ}", ""},
       {"^\\circ", ""},
       {"\\dfrac", "\\frac"},
       {"\\tfrac", "\\frac"}}};
  std::string out = without_spaces(text);
  for (const auto& [from, to] : kSame)
    for (size_t at = 0; (at = out.find(from, at)) != std::string::npos; at += to.size()) {
      const char after = at + from.size() < out.size() ? out[at + from.size()] : ' ';
      if (to.empty() && from.size() > 2 && from[0] == '\\' && std::isalpha(after) != 0)
        at += from.size();  // \leftarrow is another word
      else
        out.replace(at, from.size(), to);
    }
  if (out.ends_with('.')) out.pop_back();
  return out;
}

double score_one(Metric metric, std::string_view answer, const std::string& reference,
                 std::span<const std::string> classes) {
  switch (metric) {
    case Metric::kExact: return normalise_answer(answer) == normalise_answer(reference) ? 1 : 0;
    case Metric::kF1: return f1(answer, reference);
    case Metric::kRougeL: return rouge_l(answer, reference);
    case Metric::kRouge1Recall: return rouge_1_recall(answer, reference);
    case Metric::kClassification: return classification(answer, reference, classes);
    case Metric::kEditSimilarity: return edit_similarity(answer, reference);
    case Metric::kBoxed: {
      const std::string boxed = math_form(boxed_answer(answer));
      return !boxed.empty() && boxed == math_form(reference) ? 1 : 0;
    }
    default: return contains(lower(answer), reference) ? 1 : 0;
  }
}

}  // namespace

const char* to_string(Metric metric) {
  switch (metric) {
    case Metric::kContainsAll: return "contains_all";
    case Metric::kContainsAny: return "contains_any";
    case Metric::kExact: return "exact";
    case Metric::kF1: return "f1";
    case Metric::kRougeL: return "rouge_l";
    case Metric::kRouge1Recall: return "rouge_1_recall";
    case Metric::kClassification: return "classification";
    case Metric::kEditSimilarity: return "edit_similarity";
    case Metric::kBoxed: return "boxed";
  }
  return "unknown";
}

double score_answer(Metric metric, std::string_view answer, std::span<const std::string> references,
                    std::span<const std::string> classes) {
  if (references.empty())
    throw Error(ErrorCode::kInvalidArgument, "an answer without references cannot be scored");
  double best = 0, sum = 0;
  for (const std::string& r : references) {
    const double score = score_one(metric, answer, r, classes);
    best = std::max(best, score), sum += score;
  }
  return metric == Metric::kContainsAll ? sum / static_cast<double>(references.size()) : best;
}

std::string normalise_answer(std::string_view text) {
  std::string kept;
  for (char c : lower(text))
    if (std::ispunct(static_cast<unsigned char>(c)) == 0) kept += c;
  std::string out;
  for (const std::string& w : words_of(kept)) {
    if (w == "a" || w == "an" || w == "the") continue;
    out += (out.empty() ? "" : " ") + w;
  }
  return out;
}

std::string boxed_answer(std::string_view text) {
  constexpr std::string_view kMark = "\\boxed";
  const size_t at = text.rfind(kMark);
  if (at == std::string_view::npos) return "";
  size_t i = at + kMark.size();
  if (i < text.size() && text[i] == ' ')
    return std::string(text.substr(i + 1, text.find('$', i) - i - 1));
  if (i >= text.size() || text[i] != '{') return "";
  int depth = 0;
  for (const size_t start = i; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return std::string(text.substr(start + 1, i - start - 1));
  }
  return "";
}

}  // namespace pith
