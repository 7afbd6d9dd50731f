#include "tools/eval/task_files.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/json_file.h"
#include "pith/error.h"

namespace pith {
namespace {

using Json = nlohmann::ordered_json;
using Strings = std::vector<std::string>;

Sample read_ruler(const Json& line) {
  Sample sample;
  const std::string input = line.at("input");
  const size_t end = input.rfind('\n');
  const size_t cut = end == std::string::npos ? 0 : end;
  sample.context = input.substr(0, cut);
  sample.turns = {{input.substr(cut), line.at("outputs").get<Strings>(), {}}};
  sample.max_tokens = 128;
  return sample;
}

Metric longbench_metric(const std::string& dataset) {
  static const std::set<std::string> kRouge{"gov_report", "qmsum", "multi_news", "samsum"};
  static const std::set<std::string> kOwn{"passage_retrieval_en", "passage_count"};
  if (kRouge.count(dataset) > 0) return Metric::kRougeL;
  if (dataset == "trec") return Metric::kClassification;
  if (dataset == "lcc" || dataset == "repobench-p") return Metric::kEditSimilarity;
  if (kOwn.count(dataset) > 0)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("LongBench's {} has a metric of its own that pith lacks; leave its "
                            "lines out",
                            dataset));
  static const std::set<std::string> kF1{"narrativeqa", "qasper",  "multifieldqa_en", "hotpotqa",
                                         "2wikimqa",    "musique", "triviaqa"};
  if (kF1.count(dataset) > 0) return Metric::kF1;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("LongBench's '{}' is not supported: it is not one of its English tasks",
                          dataset));
}

Sample read_longbench(const Json& line) {
  std::string dataset = line.at("dataset");
  if (dataset.ends_with("_e")) dataset.resize(dataset.size() - 2);
  Sample sample;
  sample.metric = longbench_metric(dataset);
  sample.context = line.at("context");
  Turn turn{"\n\n" + line.at("input").get<std::string>() + "\nAnswer:",
            line.at("answers").get<Strings>(),
            {}};
  if (sample.metric == Metric::kEditSimilarity) turn.question = line.at("input");
  if (line.contains("all_classes") && line["all_classes"].is_array())
    turn.classes = line["all_classes"].get<Strings>();
  sample.turns = {turn};
  sample.max_tokens = sample.metric == Metric::kRougeL ? 512 : 64;
  return sample;
}

Sample read_math(const Json& line) {
  Sample sample;
  sample.metric = Metric::kBoxed, sample.max_tokens = 2048;
  sample.context = line.at("problem");
  sample.turns = {{"\nPlease reason step by step, and put your final answer within \\boxed{}.\n",
                   {line.at("answer").get<std::string>()},
                   {}}};
  return sample;
}

Sample read_litm_kv(const Json& line) {
  Sample sample;
  sample.metric = Metric::kContainsAny, sample.max_tokens = 100;
  sample.context =
      "Extract the value corresponding to the specified key in the JSON object below."
      "\n\nJSON data:\n{";
  const Json& records = line.at("ordered_kv_records");
  for (size_t i = 0; i < records.size(); ++i)
    sample.context +=
        fmt::format("{}\"{}\": \"{}\"", i > 0 ? ",\n " : "", records[i].at(0).get<std::string>(),
                    records[i].at(1).get<std::string>());
  sample.context += "}\n";
  sample.turns = {
      {fmt::format("\nKey: \"{}\"\nCorresponding value:", line.at("key").get<std::string>()),
       {line.at("value").get<std::string>()},
       {}}};
  return sample;
}

Sample read_litm_qa(const Json& line) {
  Sample sample;
  sample.metric = Metric::kContainsAny, sample.max_tokens = 100;
  sample.context =
      "Write a high-quality answer for the given question using only the provided search results "
      "(some of which might be irrelevant).\n\n";
  size_t number = 0;
  for (const Json& document : line.at("ctxs"))
    sample.context += fmt::format("Document [{}](Title: {}) {}\n", ++number,
                                  document.at("title").get<std::string>(),
                                  document.at("text").get<std::string>());
  sample.turns = {{fmt::format("\nQuestion: {}\nAnswer:", line.at("question").get<std::string>()),
                   line.at("answers").get<Strings>(),
                   {}}};
  return sample;
}

struct Format {
  std::string_view name;
  Sample (*read)(const Json& line);
};
constexpr std::array<Format, 5> kFormats{
    Format{"ruler", read_ruler}, Format{"longbench", read_longbench}, Format{"math500", read_math},
    Format{"litm-kv", read_litm_kv}, Format{"litm-qa", read_litm_qa}};

const Format& find_format(std::string_view name) {
  for (const Format& f : kFormats)
    if (f.name == name) return f;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is no format; use ruler, longbench, math500, litm-kv or litm-qa", name));
}

}  // namespace

std::vector<Sample> read_samples(const std::filesystem::path& file, std::string_view format,
                                 size_t count) {
  const Format& reader = find_format(format);
  std::istringstream in(read_file(file, kMostTextBytes));
  std::vector<Sample> samples;
  size_t number = 0;
  for (std::string line; std::getline(in, line) && (count == 0 || samples.size() < count);) {
    ++number;
    if (line.empty()) continue;
    try {
      Sample sample = reader.read(parse_json<Json>(line, "it"));
      sample.task = format, sample.number = samples.size();
      if (sample.turns[0].references.empty())
        throw Error(ErrorCode::kCorrupt,
                    fmt::format("{}: line {} has no reference answer", file.string(), number));
      samples.push_back(std::move(sample));
    } catch (const nlohmann::json::exception& e) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{}: line {} is not of the format {}: {}",
                                                   file.string(), number, format, e.what()));
    }
  }
  if (samples.empty())
    throw Error(ErrorCode::kCorrupt, fmt::format("{} holds no samples", file.string()));
  return samples;
}

}  // namespace pith
