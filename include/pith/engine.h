#pragma once
// What conversations share on one device: the model's weights, threads or a stream, kernels, the
// buffers of a forward pass and one account of memory. Sessions (pith/session.h) are tokens,
// options and a cache, so that making, forking and dropping one costs its own bytes and no more;
// step() runs many of them in one pass.
//
// Threads: an engine may be called from any thread; passes take turns. A session is one thread's at
// a time, and no thread's while another runs a step() that it is part of; but fork() and the
// questions (ledger(), rows(), ...) only read, so that any number of threads may ask one session
// that nobody changes meanwhile. Callbacks run on the caller's thread; sinks of logits and samplers
// while the engine is held, so they must not call it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "pith/device.h"
#include "pith/error.h"
#include "pith/ledger.h"
#include "pith/model.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

class Sampler;  // pith/generate.h
class Session;  // pith/session.h
struct SessionOptions;

/// What all sessions of an engine have in common. `chunk` is here since answers depend on it in
/// their last bits: sessions of one engine that read the same tokens say the same.
struct EngineOptions {
  Device device = Device::kCpu;
  int threads = 0;  ///< 0 = all cores
  /// "", "scalar", "avx2", "avx512", "avx512_vnni"; "" = best (or PITH_ISA's)
  std::string isa = {};
  size_t chunk = 512;  ///< prompt tokens per forward pass (llama.cpp's ubatch)
  /// Never round activations to 16 bits of a float, even where that is faster; on the GPU a
  /// prompt's weights are widened for that, chunk after chunk.
  bool f32_arithmetic = false;
  /// GPU: of how many sessions a token each runs in one pass, which reads the weights once. 1: one
  /// after the other, by kernels that take the least time for one; more: by kernels that serve any
  /// number up to this. Answers differ between the two in their last bits; who else is in a pass
  /// never changes any. On the CPU one way serves all, and this says nothing.
  size_t parallel = 1;
  /// Bytes of all caches, tables, staging and scratch together, weights apart; 0 = none.
  size_t memory_limit = 0;
};

/// How tokens come to a session.
enum class Append : uint8_t {
  kWhole,       ///< several are a prompt that ends with them; one is part of an answer
  kMore,        ///< the end of a piece of a prompt that goes on: others may go on from here
  kPromptEnds,  ///< the last of a prompt, even if it is one
  kPart,        ///< of a piece of a prompt: neither of them ends here
};

/// What step() does for one session. An answer does not depend on what else is in the step: its
/// bits are those of Session::append with the same tokens.
struct Work {
  Session* session = nullptr;
  std::span<const int32_t> tokens = {};
  Append append = Append::kWhole;
  float* logits = nullptr;  ///< [V] those after the last token are written here; null: not wanted
  /// Draws the next token, as Session::sample would; null: none is drawn.
  Sampler* sampler = nullptr;

  // What became of it.
  int32_t next = -1;                  ///< the token drawn
  std::optional<Error> failure = {};  ///< as Session::append and sample throw
};

class Engine {
 public:
  /// Throws kInvalidArgument for values that make no sense, kUnsupported for a device that is not
  /// there, kOutOfMemory.
  explicit Engine(std::shared_ptr<const Model> model, const EngineOptions& options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Works of one token run in one pass, which reads the weights once, and what they draw is drawn;
  /// prompts follow, chunk after chunk, in passes of their own. To decode in between, give prompts
  /// chunk by chunk (PromptReader). A work that fails says so and changes no other. Throws
  /// kInvalidArgument, before anything is done, for a work without a session, a session of another
  /// engine, or one that is named twice.
  void step(std::span<Work> works);

  /// The length of the next chunk of a piece with `left` tokens to come: how step() and
  /// Session::append cut. Who cuts by himself cuts here to get the same bits; PromptReader does.
  size_t next_chunk(size_t left) const;

  /// What is the engine's own: scratch.
  Ledger ledger() const;
  /// Bytes that the engine and all its sessions take, weights apart; the most that they took.
  size_t bytes_in_use() const;
  size_t peak_bytes() const;

  const std::shared_ptr<const Model>& model() const;
  const EngineOptions& options() const;
  int threads() const;
  const char* isa() const;

 private:
  friend class Session;
  class [[gnu::visibility("hidden")]] Step;
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
