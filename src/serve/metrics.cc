#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace pith::serve {
namespace {

struct Text {
  std::string model, out;

  void head(const std::string& name, const char* type, const char* help) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class T>
  void value(const std::string& name, const char* type, const char* help, T number) {
    head(name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, model, number);
  }
  void histogram(const std::string& name, const char* help, const Histogram& h) {
    head(name, "histogram", help);
    out += h.text(name, model);
  }
  void by(const std::string& name, const char* help, const char* label,
          const std::map<std::string, uint64_t>& counts) {
    head(name, "counter", help);
    for (const auto& [reason, count] : counts)
      out += fmt::format("{}{{{},{}=\"{}\"}} {}\n", name, model, label, reason, count);
  }
};

/// A label's value: quotes and backslashes would end it.
std::string label(std::string text) {
  std::erase_if(text, [](char c) { return c == '"' || c == '\\' || c == '\n'; });
  return text;
}

void gauges(Text& t, const Gauges& g) {
  const double share = g.budget == 0 ? 0
                                     : static_cast<double>(std::max(g.reserved, g.in_use)) /
                                           static_cast<double>(g.budget);
  t.value("vllm:num_requests_running", "gauge", "Answers being made.", g.running);
  t.value("vllm:num_requests_waiting", "gauge", "Requests in the queue.", g.waiting);
  t.value("vllm:kv_cache_usage_perc", "gauge", "Share of the memory budget that is taken.", share);
  t.value("vllm:num_preemptions_total", "counter", "Always 0: memory is reserved.", 0);
  t.value("llamacpp:requests_processing", "gauge", "Answers being made.", g.running);
  t.value("llamacpp:requests_deferred", "gauge", "Requests in the queue.", g.waiting);
  t.value("pith_budget_bytes", "gauge", "Of --memory.", g.budget);
  t.value("pith_reserved_bytes", "gauge", "The most that running sessions may take.", g.reserved);
  t.value("pith_snapshot_bytes", "gauge", "Snapshots of prompts.", g.snapshot_bytes);
  t.value("pith_snapshots", "gauge", "Snapshots of prompts.", g.snapshots);
  t.head("pith_bytes", "gauge", "Bytes by what they are for.");
  t.out += fmt::format(
      "pith_bytes{{{0},kind=\"caches\"}} {1}\npith_bytes{{{0},kind=\"scratch\"}} "
      "{2}\npith_bytes{{{0},kind=\"weights\"}} {3}\n",
      t.model, g.in_use - std::min(g.scratch, g.in_use), g.scratch, g.weights);
  t.value("pith_heap_bytes", "gauge", "Of the process, not freed; caches are in it.", g.heap);
  t.head("pith_sessions", "gauge", "Sessions by state.");
  t.out += fmt::format(
      "pith_sessions{{{0},state=\"running\"}} {1}\npith_sessions{{{0},"
      "state=\"waiting\"}} {2}\npith_sessions{{{0},state=\"idle\"}} {3}\n"
      "pith_sessions{{{0},state=\"on disk\"}} {4}\n",
      t.model, g.running, g.waiting, g.idle, g.on_disk);
  t.value("pith_disk_bytes", "gauge", "Files of idle conversations.", g.disk.bytes);
  t.value("pith_disk_budget_bytes", "gauge", "Of --disk.", g.disk.budget);
  t.value("pith_disk_writes_total", "counter", "Conversations written.", g.disk.writes);
  t.value("pith_disk_reads_total", "counter", "Conversations read again.", g.disk.reads);
  t.value("pith_disk_taken_over_total", "counter", "Conversations of servers that have left.",
          g.disk.taken_over);
  t.value("pith_disk_failures_total", "counter", "Writes and reads that failed.", g.disk.failures);
  t.value("pith_conversations_dropped_total", "counter",
          "Idle conversations given up for want of memory and disk.", g.disk.dropped);
  t.value("pith_rows_kept", "gauge", "Rows held by running sessions.", g.rows_kept);
  t.value("pith_rows_seen", "gauge", "Rows that exact caches of them would hold.", g.rows_seen);
  t.value("pith_snapshot_hits_total", "counter", "Prompts that went on from one.", g.snapshot_hits);
  t.value("pith_snapshot_misses_total", "counter", "Prompts that did not.", g.snapshot_misses);
  t.value("pith_snapshot_evictions_total", "counter", "Given up.", g.snapshot_evictions);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::add(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(at)];
  sum_ += value;
  ++count_;
}

std::string Histogram::text(const std::string& name, const std::string& labels) const {
  std::string out;
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string end = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, labels.empty() ? "" : ",",
                       end, below);
  }
  return out +
         fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, count_);
}

std::vector<double> Metrics::seconds() {
  return {0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 600};
}
std::vector<double> Metrics::counts() {
  return {1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
}

void Metrics::finished(const Finished& a) {
  const std::lock_guard guard(lock_);
  ++succeeded_[a.reason];
  asked_tokens_ += a.prompt_tokens;
  cached_tokens_ += a.cached_tokens;
  drawn_tokens_ += a.drawn_tokens;
  decode_seconds_ += a.decode_seconds;
  if (a.reason == "error" || a.reason == "abort") return;
  first_token_.add(a.first_token_seconds);
  whole_.add(a.seconds);
  queue_.add(a.queue_seconds);
  prefill_.add(a.prompt_seconds);
  decode_.add(a.decode_seconds);
  prompt_length_.add(static_cast<double>(a.prompt_tokens));
  answer_length_.add(static_cast<double>(a.drawn_tokens));
}

void Metrics::token_gap(double s) {
  const std::lock_guard guard(lock_);
  gap_.add(s);
}
void Metrics::step(size_t rows, double s) {
  const std::lock_guard guard(lock_);
  Steps& alike = passes_of_[rows];
  ++alike.count;
  alike.seconds += s;
  rows_.add(static_cast<double>(rows));
}
void Metrics::prompt_chunk(size_t tokens, double s) {
  const std::lock_guard guard(lock_);
  prompt_tokens_ += tokens;
  ++chunks_.count;
  chunks_.seconds += s;
}
void Metrics::refused(const std::string& reason) {
  const std::lock_guard guard(lock_);
  ++refused_[reason];
}
void Metrics::cancelled(const std::string& phase) {
  const std::lock_guard guard(lock_);
  ++cancelled_[phase];
}
void Metrics::saved(double s) {
  const std::lock_guard guard(lock_);
  save_seconds_ += s;
}

std::string Metrics::text(const Gauges& now) const {
  const std::lock_guard guard(lock_);
  Text t{fmt::format("model=\"{}\"", label(model_)), ""};
  gauges(t, now);
  t.value("vllm:prefix_cache_queries", "counter", "Prompt tokens asked.", asked_tokens_);
  t.value("vllm:prefix_cache_hits", "counter", "Of them, not read again.", cached_tokens_);
  t.value("vllm:prompt_tokens_total", "counter", "Prompt tokens read.", prompt_tokens_);
  t.value("vllm:generation_tokens_total", "counter", "Tokens drawn.", drawn_tokens_);
  t.by("vllm:request_success_total", "Answers by how they ended.", "finished_reason", succeeded_);
  t.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", first_token_);
  t.histogram("vllm:inter_token_latency_seconds", "From token to token.", gap_);
  t.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", whole_);
  t.histogram("vllm:request_queue_time_seconds", "In the queue.", queue_);
  t.histogram("vllm:request_prefill_time_seconds", "Reading the prompt.", prefill_);
  t.histogram("vllm:request_decode_time_seconds", "Writing the answer.", decode_);
  t.histogram("vllm:request_prompt_tokens", "Tokens of prompts.", prompt_length_);
  t.histogram("vllm:request_generation_tokens", "Tokens of answers.", answer_length_);
  t.value("llamacpp:prompt_tokens_total", "counter", "Prompt tokens read.", prompt_tokens_);
  t.value("llamacpp:prompt_seconds_total", "counter", "Reading prompts.", chunks_.seconds);
  t.value("llamacpp:tokens_predicted_total", "counter", "Tokens drawn.", drawn_tokens_);
  t.value("llamacpp:tokens_predicted_seconds_total", "counter", "Writing.", decode_seconds_);
  uint64_t passes = 0, pass_rows = 0;
  for (const auto& [rows, of] : passes_of_) passes += of.count, pass_rows += of.count * rows;
  t.value("llamacpp:n_decode_total", "counter", "Passes of decode.", passes);
  t.value("llamacpp:n_busy_slots_per_decode", "gauge", "Sessions a pass, on average.",
          passes == 0 ? 0.0 : static_cast<double>(pass_rows) / static_cast<double>(passes));
  const auto steps = [&](const char* name, const char* help, auto value) {
    t.head(name, "counter", help);
    for (const auto& [rows, of] : passes_of_)
      t.out +=
          fmt::format("{}{{{},part=\"pass\",rows=\"{}\"}} {}\n", name, t.model, rows, value(of));
    t.out += fmt::format("{}{{{},part=\"chunk\"}} {}\n", name, t.model, value(chunks_));
  };
  steps("pith_steps_total", "Passes of decode by sessions, chunks of prompts.",
        [](const Steps& of) { return of.count; });
  steps("pith_step_seconds_total", "What they took.", [](const Steps& of) { return of.seconds; });
  t.histogram("pith_batch_rows", "Sessions a pass of decode.", rows_);
  t.value("pith_tokens_recomputed_total", "counter", "Prompt tokens read.", prompt_tokens_);
  t.value("pith_save_seconds_total", "counter", "Writing sessions to files.", save_seconds_);
  t.by("pith_admission_refused_total", "Requests that were not begun.", "reason", refused_);
  t.by("pith_cancelled_total", "Answers whose reader left.", "phase", cancelled_);
  return t.out;
}

}  // namespace pith::serve
