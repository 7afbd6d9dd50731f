#pragma once
// What computes a session: the forward pass and the cache, on one device. Sessions check their
// arguments and count tokens; everything else is a backend's.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pith/generate.h"
#include "pith/session.h"

namespace pith {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<Backend> clone() const = 0;

  /// Runs a chunk of checked tokens; their rows are appended to the cache.
  virtual void run(std::span<const int32_t> tokens, int64_t first_position) = 0;
  virtual void end_prefill() = 0;
  /// As Forward's.
  virtual std::span<const float> last_logits() = 0;
  virtual void all_logits(const Session::LogitsSink& sink) = 0;
  /// sampler.sample() of the last logits; devices may look at what it needs alone.
  virtual int32_t sample(Sampler& sampler, std::span<const int32_t> history) {
    return sampler.sample(last_logits(), history);
  }
  virtual void protect(std::span<const TokenRange> ranges) = 0;

  virtual HeadRows rows(int layer, int head) const = 0;
  /// The error probe's; empty without one.
  virtual std::vector<AttentionError> attention_errors() const = 0;
  virtual Ledger ledger() const = 0;
  virtual std::string describe_policy() const = 0;
  virtual int threads() const = 0;
  virtual const char* isa() const = 0;
};

/// `options` are checked. Throw as Session's constructor does.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<const Model> model,
                                          const SessionOptions& options);
/// Throws kUnsupported in a build without CUDA, on a machine without a GPU, and for what the GPU
/// does not do yet.
std::unique_ptr<Backend> make_cuda_backend(std::shared_ptr<const Model> model,
                                           const SessionOptions& options);

/// Bytes per second that the GPU reads from its memory, measured. Throws as make_cuda_backend does.
double cuda_read_rate();
/// Bytes of the GPU's memory that are taken, by whomever. Throws as make_cuda_backend does.
size_t cuda_bytes_in_use();

}  // namespace pith
