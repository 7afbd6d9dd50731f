#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "console.h"
#include "error_scale.h"

namespace pith::cli {
namespace {

const char* why_it_ended(StopReason reason) {
  switch (reason) {
    case StopReason::kEndOfText: return "to the end of the text";
    case StopReason::kStopString: return "up to a stop string";
    case StopReason::kMaxTokens: return "as many as -n allows";
    case StopReason::kContextFull: return "until the context was full";
    case StopReason::kCancelled: return "until Ctrl-C";
    case StopReason::kAttentionError: return "until --max-attn-error";
  }
  return to_string(reason);
}

}  // namespace

Json to_json(const Ledger& l) {
  return {{"tokens", l.tokens},
          {"rows_seen", l.rows_seen},
          {"rows_kept", l.rows_kept},
          {"bytes",
           {{"payload", l.payload},
            {"metadata", l.metadata},
            {"shared", l.shared},
            {"slack", l.slack},
            {"staging", l.staging},
            {"scratch", l.scratch},
            {"probe", l.probe},
            {"cache", l.cache_bytes()},
            {"total", l.total_bytes()}}},
          {"effective_bits", l.effective_bits()},
          {"retained_bits", l.retained_bits()}};
}

std::string describe_bytes(const Ledger& l) {
  std::string parts = human_bytes(static_cast<double>(l.payload)) + " payload";
  const auto add = [&](size_t bytes, const char* what) {
    if (bytes > 0) parts += fmt::format(", {} {}", human_bytes(static_cast<double>(bytes)), what);
  };
  add(l.metadata, "metadata");
  add(l.shared, "shared");
  std::string around;
  if (l.total_bytes() > l.cache_bytes()) {
    around = fmt::format(
        "; around it {} slack, {} staging, {} scratch", human_bytes(static_cast<double>(l.slack)),
        human_bytes(static_cast<double>(l.staging)), human_bytes(static_cast<double>(l.scratch)));
    if (l.probe > 0)
      around += fmt::format(", {} error probe", human_bytes(static_cast<double>(l.probe)));
  }
  return fmt::format("{} ({}{}), {:.2f} bits per number seen",
                     human_bytes(static_cast<double>(l.cache_bytes())), parts, around,
                     l.effective_bits());
}

std::string rows_per_head(const Ledger& l) {
  if (l.rows_seen == 0) return "0";
  const double rows = static_cast<double>(l.rows_kept) * static_cast<double>(l.tokens) /
                      static_cast<double>(l.rows_seen);
  return fmt::format("{:.{}f}", rows, rows == std::floor(rows) ? 0 : 1);
}

std::string share_kept(const Ledger& l) {
  if (l.rows_seen == 0) return "-";
  return fmt::format("{:.1f}%",
                     100.0 * static_cast<double>(l.rows_kept) / static_cast<double>(l.rows_seen));
}

Json to_json(const std::vector<AttentionError>& errors) {
  Json layers = Json::array();
  for (const AttentionError& e : errors)
    layers.push_back({{"layer", e.layer},
                      {"comparisons", e.steps},
                      {"estimate", e.estimate},
                      {"low", e.low},
                      {"high", e.high}});
  return layers;
}

std::string describe_errors(const std::vector<AttentionError>& errors) {
  const auto& worst =
      *std::max_element(errors.begin(), errors.end(),
                        [](const auto& a, const auto& b) { return a.estimate < b.estimate; });
  const auto error = mean_error(errors);
  if (!error) return "unknown: no decode step was compared";
  return fmt::format(
      "about {:.3f}: {}, over {} layers (largest {:.3f} in layer {}, 95% interval {:.3f} to "
      "{:.3f}); {} "
      "comparisons",
      *error, error_word(*error), errors.size(), worst.estimate, worst.layer, worst.low, worst.high,
      worst.steps);
}

Json describe_session(const Session& session) {
  return {{"architecture", session.model().config().architecture},
          {"policy", session.options().policy.to_string()},
          {"resolved_policy", session.describe_policy()},
          {"kv_seed", session.options().seed},
          {"context", session.context()},
          {"threads", session.threads()},
          {"isa", session.isa()}};
}

Json to_json(const RunStatistics& s) {
  Json json = describe_session(s.session);
  json["seed"] = s.sampling_seed;
  json["stop_reason"] = to_string(s.result.reason);
  json["prompt"] = {{"tokens", s.result.prompt_tokens},
                    {"seconds", s.result.prompt_seconds},
                    {"tokens_per_second", s.result.prompt_per_second()}};
  json["decode"] = {{"tokens", s.result.tokens.size()},
                    {"seconds", s.result.decode_seconds},
                    {"tokens_per_second", s.result.decode_per_second()}};
  json["ledger"] = to_json(s.session.ledger());
  if (const auto errors = s.session.attention_errors(); !errors.empty())
    json["attention_error"] = to_json(errors);
  json["peak_memory"] = peak_memory();
  return json;
}

std::string percent_note(const Session& session) {
  const SessionOptions& o = session.options();
  if (o.policy.to_string().find('%') == std::string::npos) return {};
  return fmt::format(" (per cent are of {} tokens)", o.percent_of > 0 ? o.percent_of : o.context);
}

std::string nothing_dropped(const Session& session) {
  const Ledger ledger = session.ledger();
  if (ledger.rows_kept < ledger.rows_seen || ledger.tokens == 0) return {};
  const auto drops = [](const PolicyRule& rule) {
    for (const MethodInfo& method : methods())
      if (method.is_selector && method.name == rule.selector.name)
        return !method.size_parameter.empty();
    return false;
  };
  const Policy& policy = session.options().policy;
  if (std::none_of(policy.rules.begin(), policy.rules.end(), drops)) return {};
  return fmt::format("no row was dropped: {} tokens are no more than the policy keeps{}",
                     ledger.tokens, percent_note(session));
}

std::string to_text(const RunStatistics& s) {
  const Ledger ledger = s.session.ledger();
  const GenerateResult& r = s.result;
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    out += wrapped(fmt::format("  {:<9} {}", name, value), 12, terminal_width()) + "\n";
  };
  line("prompt", fmt::format("{} tokens in {} ({:.1f} tokens/s)", r.prompt_tokens,
                             human_seconds(r.prompt_seconds), r.prompt_per_second()));
  line("answer",
       fmt::format("{} tokens in {} ({:.1f} tokens/s), {}", r.tokens.size(),
                   human_seconds(r.decode_seconds), r.decode_per_second(), why_it_ended(r.reason)));
  line("KV rows", fmt::format("{} of {} per KV head kept ({}), context {}", rows_per_head(ledger),
                              ledger.tokens, share_kept(ledger), s.session.context()));
  if (const std::string none = nothing_dropped(s.session); !none.empty()) line("", none);
  line("KV bytes", describe_bytes(ledger));
  if (const auto errors = s.session.attention_errors(); !errors.empty())
    line("attention", "error " + describe_errors(errors));
  line("policy", fmt::format("{}{}, kv-seed {}", s.session.options().policy.to_string(),
                             percent_note(s.session), s.session.options().seed));
  line("machine",
       fmt::format("{} threads, {}, seed {}, peak memory {}", s.session.threads(), s.session.isa(),
                   s.sampling_seed, human_bytes(static_cast<double>(peak_memory()))));
  return out;
}

void print_json(const Json& json) {
  write_out(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace pith::cli
