#pragma once
// Counters in Prometheus's text form, under our names and those that routers and dashboards know.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace pith::serve {

class Histogram {
 public:
  /// `bounds`: upper ends of the buckets, ascending.
  explicit Histogram(std::vector<double> bounds);
  void add(double value);
  double sum() const { return sum_; }
  uint64_t count() const { return count_; }
  /// The lines of one metric; `labels`: "" or "model=\"demo\"".
  std::string text(const std::string& name, const std::string& labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;  // [bounds + 1]
  double sum_ = 0;
  uint64_t count_ = 0;
};

/// The scheduler's present state: gauges.
struct Gauges {
  size_t running = 0, waiting = 0, idle = 0, on_disk = 0;
  struct Disk {
    size_t bytes = 0, budget = 0;
    uint64_t writes = 0, reads = 0, failures = 0, dropped = 0, taken_over = 0;
  } disk = {};
  size_t budget = 0, reserved = 0, in_use = 0, scratch = 0, weights = 0, snapshot_bytes = 0;
  size_t snapshots = 0, heap = 0;
  uint64_t snapshot_hits = 0, snapshot_misses = 0, snapshot_evictions = 0, tokens_reused = 0;
  uint64_t rows_kept = 0, rows_seen = 0;
};

/// Any thread may call it.
class Metrics {
 public:
  explicit Metrics(std::string model) : model_(std::move(model)) {}

  struct Finished {
    std::string reason;  ///< stop, length, abort or error
    size_t prompt_tokens = 0, cached_tokens = 0, drawn_tokens = 0;
    double queue_seconds = 0, first_token_seconds = 0, prompt_seconds = 0, decode_seconds = 0;
    double seconds = 0;
  };
  void finished(const Finished& answer);
  void token_gap(double seconds);
  void step(size_t rows, double seconds);
  void prompt_chunk(size_t tokens, double seconds);
  void refused(const std::string& reason);
  void cancelled(const std::string& phase);
  void saved(double seconds);
  std::string text(const Gauges& now) const;

 private:
  using Labelled = std::map<std::string, uint64_t>;

  mutable std::mutex lock_;
  const std::string model_;
  uint64_t prompt_tokens_ = 0, drawn_tokens_ = 0, cached_tokens_ = 0, asked_tokens_ = 0;
  struct Steps {
    uint64_t count = 0;
    double seconds = 0;
  };
  std::map<size_t, Steps> passes_of_;  // by rows
  Steps chunks_;
  double decode_seconds_ = 0, save_seconds_ = 0;
  Labelled succeeded_, refused_, cancelled_;
  static std::vector<double> seconds();
  static std::vector<double> counts();
  Histogram first_token_{seconds()}, gap_{seconds()}, whole_{seconds()}, queue_{seconds()},
      prefill_{seconds()}, decode_{seconds()}, prompt_length_{counts()}, answer_length_{counts()},
      rows_{{1, 2, 4, 8, 16, 32, 64}};
};

}  // namespace pith::serve
