// pith bench select: for each selector the time of updates and of attention per token against the
// length of the stream and the size kept, with rows, bytes and the distance to the memory's rate.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "args.h"
#include "bench_select.h"
#include "commands.h"
#include "console.h"
#include "core/output_file.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "report.h"

namespace pith::cli {
namespace {

constexpr size_t kLongest = size_t{1} << 30;

struct SelectOptions {
  ModelOptions engine;
  std::vector<std::string> policies;
  std::string lengths = "4096..1048576";
  std::vector<int64_t> sizes{256, 1024};
  SelectShape shape;
  int64_t repeats = 3;
  std::string csv;
};

size_t parse_length(std::string_view text) {
  size_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n == 0 || n > kLongest)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--n: '{}' is no length; write 4096..1048576 (each four times the one "
                            "before) or 4096,65536; 1 to {} tokens",
                            text, kLongest));
  return n;
}

// "A..B" is A, 4A, 16A, ... and B; else a list.
std::vector<size_t> parse_lengths(const std::string& text) {
  std::vector<size_t> lengths;
  if (const size_t dots = text.find(".."); dots != std::string::npos) {
    const size_t last = parse_length(std::string_view(text).substr(dots + 2));
    for (size_t n = parse_length(std::string_view(text).substr(0, dots)); n < last; n *= 4)
      lengths.push_back(n);
    lengths.push_back(last);
    return lengths;
  }
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    lengths.push_back(parse_length(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  return lengths;
}

std::vector<std::string> standard_policies() {
  std::vector<std::string> all;
  for (const MethodInfo& m : methods())
    if (m.is_selector && !m.size_parameter.empty())
      all.push_back(fmt::format("{}({}={{s}})", m.name, m.size_parameter));
  return all;
}

// Each policy once for each size that {s} in it may be; `exact` first, as the measure of all.
std::vector<SelectPolicy> policies_of(const SelectOptions& o) {
  std::vector<SelectPolicy> all{{"exact"}};
  for (const std::string& text : o.policies.empty() ? standard_policies() : o.policies) {
    if (text.find("{s}") == std::string::npos) {
      all.push_back({text});
      continue;
    }
    for (int64_t size : o.sizes) {
      SelectPolicy policy{text, static_cast<size_t>(size)};
      for (size_t at; (at = policy.text.find("{s}")) != std::string::npos;)
        policy.text.replace(at, 3, std::to_string(size));
      all.push_back(std::move(policy));
    }
  }
  for (const SelectPolicy& policy : all) Policy::parse(policy.text);
  return all;
}

/// A point beside exact attention over as many tokens.
struct Line {
  SelectPoint point;
  double exact_attend = 0;
};

double rate(const SelectPoint& p) { return static_cast<double>(p.ledger.payload) / p.attend.value; }

std::string micro(double seconds) { return fmt::format("{:.2f}", seconds * 1e6); }
std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

void print_table(const std::vector<Line>& lines, const SelectShape& shape, double read) {
  Table table({"policy", "n", "rows", "KV", "bits", "update", "attend", "step", "of attend",
               "of exact", "of read"});
  for (const auto& [p, exact] : lines) {
    table.add({p.policy.text, std::to_string(p.tokens),
               fmt::format("{:.0f}", static_cast<double>(p.ledger.rows_kept) / shape.kv_heads),
               human_bytes(static_cast<double>(p.ledger.cache_bytes())),
               fmt::format("{:.2f}", p.ledger.effective_bits()), micro(p.update.value),
               micro(p.attend.value), micro(p.step.value), percent(p.update.value / p.attend.value),
               percent(p.update.value / exact), percent(rate(p) / read)});
  }
  write_out(
      table.text() +
      "\nn: tokens, which come one at a time; rows: held of each KV head then\n"
      "update, attend, step: microseconds per token; update: appending, mean over the stream;\n"
      "attend: one token's queries over what is held; step: a decode step, which is both and, "
      "where\n"
      "the selector asks for it, attention mass; medians over the repeats\n"
      "of attend, of exact: update as a share of the policy's own attention and of exact's at n\n"
      "of read: payload read per second by attend, of the measured read bandwidth (above 100%\n"
      "where the rows fit the processor's caches)\n");
}

std::string csv_text(const std::vector<Line>& lines, double read) {
  std::string out =
      "policy,s,n,rows,bytes,effective_bits,update_seconds,update_least,update_most,"
      "attend_seconds,attend_least,attend_most,step_seconds,exact_attend_seconds,"
      "attend_bytes_per_second,read_bytes_per_second\n";
  for (const auto& [p, exact] : lines)
    out += fmt::format("\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", p.policy.text,
                       p.policy.size, p.tokens, p.ledger.rows_kept, p.ledger.cache_bytes(),
                       p.ledger.effective_bits(), p.update.value, p.update.least, p.update.most,
                       p.attend.value, p.attend.least, p.attend.most, p.step.value, exact, rate(p),
                       read);
  return out;
}

Json to_json(const Median& m) {
  return {{"median", m.value}, {"least", m.least}, {"most", m.most}};
}

Json to_json(const Line& line) {
  const SelectPoint& p = line.point;
  return {{"policy", p.policy.text},
          {"s", p.policy.size},
          {"n", p.tokens},
          {"update_seconds", to_json(p.update)},
          {"attend_seconds", to_json(p.attend)},
          {"step_seconds", to_json(p.step)},
          {"exact_attend_seconds", line.exact_attend},
          {"attend_bytes_per_second", rate(p)},
          {"ledger", pith::cli::to_json(p.ledger)}};
}

int bench_select(const SelectOptions& o) {
  const std::vector<size_t> lengths = parse_lengths(o.lengths);
  const std::vector<SelectPolicy> policies = policies_of(o);
  if (!o.csv.empty()) check_output(o.csv);
  ThreadPool pool(o.engine.threads);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for(o.engine.isa)};
  const SelectBench bench(context, o.shape, policies);
  const double error = bench.check_answer(),
               read = read_bandwidth(context, [] { return interrupted().load(); });
  std::vector<Line> lines;
  bool cancelled = false;
  try {
    for (size_t n : lengths) {
      ProgressBar bar(fmt::format("streams of {} tokens", n), "repeats", o.engine.json);
      const auto points = bench.measure(n, static_cast<size_t>(o.repeats), bar.callback());
      for (const SelectPoint& p : points) lines.push_back({p, points[0].attend.value});
    }
  } catch (const SelectCancelled&) {
    cancelled = true;
  }
  if (!o.csv.empty()) write_file(o.csv, csv_text(lines, read));
  if (o.engine.json) {
    Json list = Json::array();
    for (const Line& line : lines) list.push_back(to_json(line));
    print_json({{"kv_heads", o.shape.kv_heads},
                {"group", o.shape.group},
                {"head_dim", o.shape.head_dim},
                {"threads", pool.size()},
                {"isa", context.kernels.isa},
                {"read_bytes_per_second", read},
                {"exact_error", error},
                {"lines", list}});
  } else {
    write_out(
        fmt::format("{} KV heads, {} query heads each, head_dim {}; {} threads, {}; read "
                    "bandwidth {:.1f} GB/s; exact attention within {:.0e} of double\n\n",
                    o.shape.kv_heads, o.shape.group, o.shape.head_dim, pool.size(),
                    context.kernels.isa, read / 1e9, error));
    print_table(lines, o.shape, read);
  }
  return cancelled ? kExitInterrupted : 0;
}

}  // namespace

void add_bench_select(CLI::App& bench, Action& action) {
  auto o = std::make_shared<SelectOptions>();
  CLI::App* app = bench.add_subcommand(
      "select", "Time updates and attention of every selector against length and size");
  constexpr const char* kGroup = "Bench";
  add_repeated(*app, "--kv-policy,--policy,--policies", o->policies,
               "A policy; may be repeated. {s} in it stands for each size; default: every selector "
               "that has a size")
      ->type_name("POLICY")
      ->group(kGroup);
  app->add_option("-n,--n", o->lengths, "Tokens of the streams: A..B (A, 4A, 16A, ..., B) or A,B,C")
      ->type_name("RANGE")
      ->capture_default_str()
      ->group(kGroup);
  app->add_option("-s,--s", o->sizes, "Sizes: rows, or a selector's own size parameter")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 26))
      ->type_name("N,...")
      ->capture_default_str()
      ->group(kGroup);
  const auto count = [&](const char* name, auto& value, const char* help, CLI::Range range) {
    app->add_option(name, value, help)
        ->check(range)
        ->type_name("N")
        ->capture_default_str()
        ->group(kGroup);
  };
  count("-d,--head-dim", o->shape.head_dim, "Numbers per row, a multiple of 16",
        CLI::Range(16, 512));
  count("--kv-heads", o->shape.kv_heads, "KV heads", CLI::Range(1, 256));
  count("--group", o->shape.group, "Query heads that share a KV head", CLI::Range(1, 64));
  count("-r,--repetitions", o->repeats, "Runs of each; medians are shown", CLI::Range(1, 1000));
  // Updates of one KV head run on one thread: so does attention, or work would be compared with
  // threads.
  o->engine.threads = 1;
  add_compute_options(*app, o->engine);
  add_json_option(*app, o->engine.json);
  app->add_option("--csv", o->csv, "Write one line per policy and length to a file")
      ->type_name("FILE")
      ->group("Output");
  app->footer(
      "Rows are random; 'exact' is always measured too. The defaults take some minutes.\n\n"
      "Examples:\n"
      "  pith bench select --n 4096..65536 --s 1024\n"
      "  pith bench select --kv-policy 'express(s={s},g=2)' --csv x.csv\n");
  app->callback([o, &action] { action = [o] { return bench_select(*o); }; });
}

}  // namespace pith::cli
