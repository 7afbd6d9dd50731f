// pith eval ppl: perplexity and divergence from the exact cache, of several policies on one text.
// The null control (exact against exact) is always run and must be below 1e-6.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "args.h"
#include "eval.h"
#include "eval_ppl_report.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

constexpr double kMostNull = 1e-6;
// Of a record: false where another seed predicts the same.
constexpr const char* kRandom = "random";

struct PplOptions {
  EvalOptions eval;
  TextOptions text;
  std::string mode, base = "exact";  // mode "": whatever lets the policies act
  int64_t window = 512, score = 0, pieces = 0;
  int bos = -1;
  bool details = false, fast = false;
};

Record predictions_record(const std::vector<Prediction>& predictions) {
  Record nll = Record::array(), base = nll, divergence = nll, top = nll;
  for (const Prediction& p : predictions) {
    nll.push_back(p.nll), base.push_back(p.base_nll);
    divergence.push_back(p.divergence), top.push_back(p.same_top ? 1 : 0);
  }
  return {{"nll", nll}, {"exact_nll", base}, {"kl", divergence}, {"same_top", top}};
}

PieceResult piece_from(const Record& r) {
  PieceResult piece;
  const Record& p = r.at("predictions");
  for (size_t i = 0; i < p.at("nll").size(); ++i)
    piece.predictions.push_back(
        {p["nll"][i], p["exact_nll"][i], p["kl"][i], p["same_top"][i] == 1});
  piece.ledger = ledger_from(r.at("ledger"));
  piece.policy = r.at("resolved_policy"), piece.seconds = r.at("seconds");
  if (r.contains("attention_error"))
    for (const Record& e : r["attention_error"])
      piece.attention_errors.push_back(
          {e.at("layer"), e.at("comparisons"), e.at("estimate"), e.at("low"), e.at("high")});
  return piece;
}

/// A piece that is read at once attends to its own exact rows: every policy would lose nothing.
void settle_mode(PplOptions& o) {
  if (!o.mode.empty()) return;
  const bool acts = std::ranges::any_of(eval_runs(o.eval, false), [](const EvalRun& run) {
    return run.policy.to_string() != "exact";
  });
  o.mode = acts || o.eval.engine.error_probe.rows > 0 ? "continue" : "chunks";
}

class PplCommand {
 public:
  explicit PplCommand(const PplOptions& o)
      : o_(o),
        model_(load_model(o.eval.engine)),
        keeper_(keep_weights(model_, o.eval.engine)),
        records_(o.eval.out),
        setting_(describe_setting(o.eval, *model_)) {
    const std::string text = read_text(o.text);
    PerplexityOptions p;
    p.mode = parse_perplexity_mode(o.mode);
    p.window = static_cast<size_t>(o.window), p.score = static_cast<size_t>(o.score);
    p.pieces = static_cast<size_t>(o.pieces);
    p.session = session_options(o.eval.engine);
    const bool f32 = !o.fast && o.eval.engine.device == Device::kCpu;
    p.session.f32_arithmetic = f32;
    p.session.threads = worker_threads(o.eval.engine);
    const Tokenizer& tokenizer = model_->tokenizer();
    if (o.bos == 1 || (o.bos == -1 && tokenizer.add_bos())) p.bos = tokenizer.bos();
    setting_.update({{"kind", "ppl"},
                     {"mode", o.mode},
                     {"context", o.window},
                     {"score", o.score},
                     {"bos", p.bos},
                     {"exact", o.base},
                     {"f32_arithmetic", f32},
                     {"text_fingerprint", fingerprint(text)}});
    if (const ErrorProbeOptions& e = p.session.error_probe; e.rows > 0) {
      if (p.mode == PerplexityMode::kChunks)
        throw Error(ErrorCode::kInvalidArgument,
                    "the error probe compares steps of one token, which --mode chunks has none of; "
                    "use --mode decode or continue");
      setting_["error_probe"] = {{"rows", e.rows}, {"every", e.every}};
    }
    perplexity_ = std::make_unique<Perplexity>(model_, encode_prompt(*model_, text, o.bos), p,
                                               Policy::parse(o.base));
    for (EvalRun& run : eval_runs(o.eval, true)) totals_.emplace_back().run = std::move(run);
    totals_[0].run.policy = Policy::parse(o.base);
  }

  int run() {
    const size_t work = (perplexity_->pieces() * perplexity_->steps()) * (totals_.size() + 1);
    SharedProgress bar("measuring", "tokens", o_.eval.engine.json, work);
    for (size_t piece = 0; piece < perplexity_->pieces(); ++piece)
      if (!run_piece(piece, bar)) return interrupted_end();
    bar.finish();
    report();
    return 0;
  }

 private:
  bool run_piece(size_t piece, SharedProgress& bar) {
    std::vector<RunTotal*> open;
    std::vector<PerplexityRun> runs;
    for (RunTotal& t : totals_) {
      const bool follows = &t != totals_.data() && (&t)[-1].run.name == t.run.name;
      t.dropped |= follows && ((&t)[-1].drawless || (&t)[-1].dropped);
      if (t.dropped) continue;
      if (const std::string key = key_of(t, piece); records_.find(key) != nullptr) {
        t.add(records_.read(key, piece_from));
        t.drawless |= !records_.find(key)->value(kRandom, true);
        continue;
      }
      open.push_back(&t);
      runs.push_back({t.run.policy, t.run.seed});
    }
    const size_t others = totals_.size() - open.size() + (open.empty() ? 1 : 0);
    if (!bar.advance(others * perplexity_->steps())) return false;
    std::vector<PieceResult> results;
    if (!open.empty()) {
      results = perplexity_->run(piece, runs, [&](size_t tokens) { return bar.advance(tokens); });
      if (results.empty()) return false;
    }
    for (size_t i = 0; i < results.size(); ++i) open[i]->add(results[i]);
    drop_equal_seeds();
    for (size_t i = 0; i < results.size(); ++i)
      if (!open[i]->dropped)
        records_.add(key_of(*open[i], piece), record_of(*open[i], results[i], piece));
    return true;
  }

  std::string key_of(const RunTotal& t, size_t piece) const {
    return fmt::format("{}|{}|{}|{}|{}", setting_.dump(), piece, t.run.policy.to_string(),
                       t.run.seed, t.run.null_control ? "null" : "");
  }

  Record record_of(const RunTotal& t, const PieceResult& r, size_t piece) const {
    Record record = setting_;
    record.update({{"piece", piece},
                   {"policy", t.run.policy.to_string()},
                   {"resolved_policy", r.policy},
                   {"kv_seed", t.run.seed},
                   {"null_control", t.run.null_control},
                   {"seconds", r.seconds},
                   {"ledger", to_record(r.ledger)},
                   {"predictions", predictions_record(r.predictions)}});
    if (t.drawless) record[kRandom] = false;
    if (!r.attention_errors.empty())
      record["attention_error"] = pith::cli::to_json(r.attention_errors);
    return record;
  }

  // A policy whose second seed predicts what its first did is not randomised here: lines hold its
  // first seed alone, and say so.
  void drop_equal_seeds() {
    for (size_t i = 1; i < totals_.size(); ++i) {
      const bool second = !totals_[i].dropped && totals_[i].run.name == totals_[i - 1].run.name &&
                          (i == 1 || totals_[i - 2].run.name != totals_[i].run.name);
      if (!second || totals_[i].predictions != totals_[i - 1].predictions) continue;
      totals_[i - 1].drawless = true;
      for (size_t j = i; j < totals_.size() && totals_[j].run.name == totals_[i].run.name; ++j)
        totals_[j].dropped = true;
    }
  }

  // Seeds of one policy, in the order of the command line.
  std::vector<SeedRuns> groups() const {
    std::vector<SeedRuns> out;
    for (const RunTotal& t : totals_) {
      if (t.dropped) continue;
      if (out.empty() || out.back()[0]->run.name != t.run.name) out.emplace_back();
      out.back().push_back(&t);
    }
    return out;
  }

  int interrupted_end() const {
    if (!o_.eval.out.empty())
      fmt::print(stderr, "pith: stopped; the same command continues from {}\n", o_.eval.out);
    return kExitInterrupted;
  }

  void report() const;

  const PplOptions& o_;
  std::shared_ptr<const Model> model_;
  std::optional<Session> keeper_;
  RecordFile records_;
  Record setting_;
  std::unique_ptr<Perplexity> perplexity_;
  std::vector<RunTotal> totals_;
};

void PplCommand::report() const {
  const double null = totals_[0].summary().divergence.mean;
  if (o_.eval.engine.json) {
    Json all(setting_);
    all.update({{"pieces", perplexity_->pieces()},
                {"scored", perplexity_->pieces() * perplexity_->scored()},
                {"errors", kBlockErrors},
                {"null_control_kl", null}});
    all.update(ppl_json(groups()));
    print_json(all);
  } else {
    write_out(fmt::format("{} pieces of {} tokens ({}), {} predictions scored in each\n\n",
                          perplexity_->pieces(), perplexity_->steps() + 1, o_.mode,
                          perplexity_->scored()) +
              ppl_text(groups(), o_.details));
  }
  if (!(null < kMostNull))
    throw Error(ErrorCode::kInternal,
                fmt::format("the null control failed: exact against exact has a KL of {}", null));
}

}  // namespace

void add_eval_ppl(CLI::App& eval, Action& action) {
  auto o = std::make_shared<PplOptions>();
  CLI::App* app =
      eval.add_subcommand("ppl", "Perplexity, and KL divergence from the exact cache, on a text");
  add_eval_options(*app, o->eval);
  add_text_options(*app, o->text, "The text");
  add_bos_option(*app, o->bos);
  add_error_probe_options(*app, o->eval.engine);
  app->remove_option(app->get_option("--max-attn-error"));  // nothing is generated here
  constexpr const char* kGroup = "Protocol";
  app->add_option(
         "--mode", o->mode,
         "chunks: llama.cpp's pieces, read at once, so that no policy acts on pieces of at "
         "most -ub tokens; decode: one sequence, a token at a time; continue: a prompt, "
         "then a token at a time. "
         "Default: continue with a policy, chunks without")
      ->check(CLI::IsMember({"chunks", "decode", "continue"}))
      ->group(kGroup);
  const auto number = [&](const char* name, int64_t& value, const char* help, int64_t least) {
    app->add_option(name, value, help)
        ->check(CLI::Range(least, int64_t{1} << 32))
        ->type_name("N")
        ->capture_default_str()
        ->group(kGroup);
  };
  number("-c,--ctx-size", o->window, "Tokens of a piece; in decode the most tokens, 0 = all", 0);
  number("--score", o->score, "Predictions that count in each piece, the last; 0 = half of it", 0);
  number("--pieces", o->pieces, "Most pieces; 0 = all of the text", 0);
  app->add_option("--base", o->base, "The cache that others are compared with, e.g. exact+f32")
      ->type_name("POLICY")
      ->capture_default_str()
      ->group(kGroup);
  add_fast_option(*app, o->fast, kGroup);
  app->add_flag("--details", o->details, "Every figure of every seed, with percentiles")
      ->group("Output");
  app->footer(
      "Examples:\n"
      "  pith eval ppl -m models/demo -f book.txt\n"
      "  pith eval ppl -m models/demo -f book.txt --mode continue -c 4352 --score 256 \\\n"
      "    --pieces 4 --kv-policy 'keydiff(budget=1024)' --kv-policy 'express(s=512)' \\\n"
      "    -o ppl.jsonl\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->eval.engine, &o->eval.policies, {.context = o->window});
      settle_mode(*o);
      return PplCommand(*o).run();
    };
  });
}

}  // namespace pith::cli
