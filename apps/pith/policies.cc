// pith policies: every selector and codec of this build, with parameters, defaults and sources.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>

#include "commands.h"
#include "console.h"
#include "engine.h"
#include "pith/error.h"
#include "pith/policy.h"
#include "policies.h"
#include "report.h"
#include "tools/partners.h"

namespace pith::cli {
namespace {

/// Partners of the method on the GPU: docs/support.md has all of it.
Json gpu_json(const MethodInfo& m) {
  Json with = Json::array(), without = Json::array(), limits = Json::array();
  const GpuPartners partners = gpu_partners(m.name);
  for (const std::string& name : partners.with) with.push_back(name);
  for (const auto& [name, why] : partners.without)
    without.push_back({{"name", name}, {"why", why}});
  for (const auto& [parameter, takes] : partners.limits)
    limits.push_back({{"parameter", parameter}, {"takes", takes}});
  return {{"with", with}, {"without", without}, {"limits", limits}};
}

Json to_json(const MethodInfo& m) {
  Json parameters = Json::array();
  for (const ParameterInfo& p : m.parameters) {
    parameters.push_back({{"name", p.name}, {"default", p.default_value}, {"help", p.help}});
  }
  return {{"name", m.name},       {"kind", m.is_selector ? "selector" : "codec"},
          {"summary", m.summary}, {"source", m.source},
          {"on_gpu", m.on_gpu},   {"parameters", parameters}};
}

// A name and what it means, in lines of 80 columns.
std::string entry(size_t indent, const std::string& name, size_t column, const std::string& text) {
  const std::string head = fmt::format("{:{}}{:<{}} ", "", indent, name, column);
  return wrapped(head + text, indent + column + 1) + "\n";
}

std::string to_text(const MethodInfo& m) {
  std::string out = entry(2, m.name, 18, m.summary + (m.on_gpu ? " (also on the GPU)" : ""));
  for (const ParameterInfo& p : m.parameters)
    out += entry(4, p.name + (p.default_value.empty() ? "" : "=" + p.default_value), 18, p.help);
  if (!m.source.empty() && m.source != "-") out += entry(4, "source", 18, m.source);
  return out;
}

std::string gpu_text(const MethodInfo& m) {
  const GpuPartners partners = gpu_partners(m.name);
  std::map<std::string, std::vector<std::string>> without;  // by the reason
  for (const auto& [name, why] : partners.without) without[why].push_back(name);
  const char* link = m.is_selector ? "over" : "under";
  std::string out = "On the GPU\n";
  if (!partners.with.empty())
    out += entry(4, link, 18, fmt::format("{}", fmt::join(partners.with, ", ")));
  for (const auto& [why, names] : without)
    out += entry(4, std::string("not ") + link, 18,
                 fmt::format("{}: {}", fmt::join(names, ", "), why));
  for (const auto& [parameter, takes] : partners.limits) out += entry(4, parameter, 18, takes);
  return out;
}

}  // namespace

constexpr const char* kGrammar =
    "A policy is a selector, codecs joined to it by '+', and settings after commas:\n"
    "  uniform(rate=0.25)+bf16,sink=4,window=64\n"
    "The selector chooses the rows that stay (default exact); a codec says how they\n"
    "are stored: 'k:' or 'v:' before it restricts it to keys or values (default f16).\n"
    "Settings:\n"
    "  sink=N    the first N rows of each KV head stay exact\n"
    "  window=N  the newest N rows stay exact\n"
    "  dtype=T   type of exact rows: f32, f16 or bf16\n"
    "  prompt=P  how a prompt is read: in chunks that attend to what is compressed\n"
    "            already (chunks), a layer at a time, exactly (exact), or so and\n"
    "            selected from at its end alone (once); in the first rule\n"
    "Rules for some layers or heads follow after ';' (negative numbers count from the\n"
    "end):\n"
    "  streaming_llm(window=508);layers=0-1,-1:exact;layers=4/heads=0:exact\n"
    "A budget is rows per KV head (1024), a share of what is read (25%), or bytes of\n"
    "the whole cache (16MiB).\n";

int print_one(const std::string& name, bool json) {
  for (const MethodInfo& m : methods()) {
    if (m.name != name) continue;
    if (json) {
      Json one = to_json(m);
      one["gpu"] = gpu_json(m);
      print_json(one);
    } else {
      write_out(fmt::format("{}: {}\n", m.is_selector ? "Selector" : "Codec", m.name) + to_text(m) +
                gpu_text(m) +
                "\ndocs/methods/ has a page on it, docs/support.md what goes with it.\n");
    }
    return 0;
  }
  Policy::parse(name);  // knows what is near to an unknown name
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is a policy; give the name of one method, as in 'pith policies "
                          "snapkv'",
                          name));
}

int print_policies(bool json) {
  if (json) {
    Json list = Json::array();
    for (const MethodInfo& m : methods()) list.push_back(to_json(m));
    print_json({{"methods", list}});
    return 0;
  }
  std::string selectors, codecs;
  for (const MethodInfo& m : methods()) (m.is_selector ? selectors : codecs) += to_text(m);
  write_out("Selectors: which rows stay\n" + selectors + "\nCodecs: how a row is stored\n" +
            codecs + "\n" + kGrammar);
  return 0;
}

void add_policies(CLI::App& root, Action& action) {
  auto json = std::make_shared<bool>(false);
  auto name = std::make_shared<std::string>();
  CLI::App* app = root.add_subcommand("policies", "List the compression methods and the grammar");
  app->add_option("name", *name, "One method alone, with its parameters")->type_name("NAME");
  add_json_option(*app, *json);
  app->callback([json, name, &action] {
    action = [json, name] {
      return name->empty() ? print_policies(*json) : print_one(*name, *json);
    };
  });
}

}  // namespace pith::cli
