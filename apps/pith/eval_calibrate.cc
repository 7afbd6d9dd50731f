// pith eval error-probe: how true the error probe's estimates are on a text. See
// src/tools/eval/error_calibration.h for what is compared.

#include <fmt/format.h>

#include <memory>

#include "eval.h"
#include "pith/error.h"
#include "report.h"
#include "text_input.h"
#include "tools/eval/error_calibration.h"

namespace pith::cli {
namespace {

struct CalibrateOptions {
  ModelOptions engine;
  TextOptions text;
  std::vector<std::string> policies;
  int64_t prompt = 1024, steps = 512, seeds = 4, pieces = 1;
  int bos = -1;
};

Json to_json(const CalibrationSummary& s) {
  return {{"intervals", s.count},       {"truth", s.truth},       {"estimate", s.estimate},
          {"covered_share", s.covered}, {"above_share", s.above}, {"mean_width", s.width}};
}

std::vector<CalibrationPoint> of_policy(const std::vector<CalibrationPoint>& points,
                                        size_t policy) {
  std::vector<CalibrationPoint> mine;
  for (const CalibrationPoint& p : points)
    if (p.policy == policy) mine.push_back(p);
  return mine;
}

void report(const CalibrateOptions& o, const CalibrationOptions& c,
            const std::vector<CalibrationPoint>& points) {
  Table table({"policy", "true error", "estimate", "covered", "too high", "width", "intervals"});
  Json list = Json::array();
  const auto add = [&](const std::string& name, const CalibrationSummary& s) {
    table.add({name, fmt::format("{:.4f}", s.truth), fmt::format("{:.4f}", s.estimate),
               fmt::format("{:.1f}%", 100 * s.covered), fmt::format("{:.1f}%", 100 * s.above),
               fmt::format("{:.4f}", s.width), std::to_string(s.count)});
    Json line = to_json(s);
    line["policy"] = name;
    list.push_back(line);
  };
  for (size_t p = 0; p < c.policies.size(); ++p)
    add(c.policies[p].to_string(), summarise(of_policy(points, p)));
  if (c.policies.size() > 1) add("all", summarise(points));
  if (o.engine.json) {
    print_json({{"rows", c.probe.rows},
                {"every", c.probe.every},
                {"prompt", c.prompt},
                {"steps", c.steps},
                {"pieces", o.pieces},
                {"seeds", c.seeds},
                {"policies", list}});
    return;
  }
  write_out(fmt::format("{} rows kept aside, a comparison every {} steps; {} pieces of {} + {} "
                        "tokens, {} seeds, every layer\n\n",
                        c.probe.rows, c.probe.every, o.pieces, c.prompt, c.steps, c.seeds) +
            table.text() +
            "\ntrue error, estimate: root mean square over intervals; covered: 95% intervals that\n"
            "hold the truth; too high: that lie above it; width: mean, in units of the error\n");
}

int calibrate(const CalibrateOptions& o) {
  if (o.policies.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "no policy to compare; name one or more with --kv-policy");
  CalibrationOptions c;
  for (const std::string& text : o.policies) {
    PolicyOptions one = o.engine.policy;
    one.policy = text;
    c.policies.push_back(resolve_policy(one));
  }
  c.session = session_options(o.engine);
  c.probe = c.session.error_probe;
  if (c.probe.rows == 0) c.probe.rows = 256;
  c.prompt = static_cast<size_t>(o.prompt), c.steps = static_cast<size_t>(o.steps);
  c.seeds = static_cast<size_t>(o.seeds);
  const auto model = load_model(o.engine);
  const auto ids = encode_prompt(*model, read_text(o.text), o.bos);
  const size_t piece = c.prompt + c.steps, wanted = piece * static_cast<size_t>(o.pieces);
  if (ids.size() < wanted)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the text has {} tokens, {} are needed; give a longer text or fewer "
                            "--prompt-tokens, --steps or --pieces",
                            ids.size(), wanted));
  SharedProgress bar("comparing", "tokens", o.engine.json, wanted);
  std::vector<CalibrationPoint> points;
  for (int64_t i = 0; i < o.pieces; ++i) {
    size_t before = 0;
    const auto more =
        calibrate_error_probe(*model, std::span(ids).subspan(static_cast<size_t>(i) * piece, piece),
                              c, [&](size_t done, size_t) {
                                const size_t count = done - before;
                                before = done;
                                return bar.advance(count);
                              });
    if (more.empty()) return kExitInterrupted;
    points.insert(points.end(), more.begin(), more.end());
  }
  bar.finish();
  report(o, c, points);
  return 0;
}

}  // namespace

void add_eval_calibrate(CLI::App& eval, Action& action) {
  auto o = std::make_shared<CalibrateOptions>();
  CLI::App* app = eval.add_subcommand(
      "error-probe", "Estimates of the run-time error probe against the true attention error");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  app->remove_option(app->get_option("--ctx-size"));
  add_text_options(*app, o->text, "The text");
  add_bos_option(*app, o->bos);
  add_policy_options(*app, o->engine.policy, &o->policies);
  add_error_probe_options(*app, o->engine);
  app->remove_option(app->get_option("--max-attn-error"));
  const auto number = [&](const char* name, int64_t& value, const char* help) {
    app->add_option(name, value, help)
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
        ->type_name("N")
        ->capture_default_str()
        ->group("Protocol");
  };
  number("--prompt-tokens", o->prompt, "Tokens of a piece that are read at once");
  number("--steps", o->steps, "Tokens that follow one at a time");
  number("--pieces", o->pieces, "Pieces of the text");
  number("--seeds", o->seeds, "Probes with a sample of their own, of each policy");
  app->callback([o, &action] { action = [o] { return calibrate(*o); }; });
}

}  // namespace pith::cli
