#pragma once
// An engine is one model on one device: weights, the buffers of a forward pass and a runtime
// (pith/runtime.h), which engines of other models can share. Sessions (pith/session.h) are tokens,
// options and a cache; creating, forking and dropping one costs only its own bytes. step() runs
// many sessions in one pass.
//
// Threads: any thread may call an engine; a runtime's passes run one after another. Only one thread
// at a time may change a session, including by a step() that the session is part of. fork(),
// ledger(), rows() and the other const functions only read: any number of threads may call them
// while no thread changes it. Callbacks run on the caller's thread. Logits sinks and samplers
// run while the runtime is locked and must call no engine of it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "pith/device.h"
#include "pith/error.h"
#include "pith/ledger.h"
#include "pith/model.h"
#include "pith/runtime.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

class Sampler;  // pith/generate.h
class Session;  // pith/session.h
struct SessionOptions;

/// Options of an engine. `chunk` is one of them because answers depend on it in their last bits:
/// sessions of one engine that read the same tokens give the same answers.
struct EngineOptions {
  Device device = Device::kCpu;
  int threads = 0;  ///< 0 = all cores
  /// "scalar", "avx2", "avx512" or "avx512_vnni"; "" = that of PITH_ISA, or the best
  std::string isa = {};
  size_t chunk = 512;  ///< prompt tokens per forward pass (llama.cpp's ubatch)
  /// Never round activations to 16-bit floats, even where that is faster. On the GPU the weights
  /// are then widened for every chunk of a prompt.
  bool f32_arithmetic = false;
  /// GPU: the most sessions that share one decode pass, which reads the weights once. With 1,
  /// sessions run one after another, by the kernels that are fastest for one; with more, by kernels
  /// that serve any number up to this. Answers of the two differ in their last bits, but never with
  /// the other sessions of a pass. The CPU ignores it.
  size_t parallel = 1;
  /// Most bytes of all caches, tables, staging and scratch, without weights; 0 = no limit.
  size_t memory_limit = 0;
  /// Shared with other engines and layers; null: one of its own, made of the device, threads, isa
  /// and memory limit. With a runtime leave these four unset, or give the runtime's values.
  std::shared_ptr<Runtime> runtime = {};
};

/// How the tokens of a call relate to a prompt.
enum class Append : uint8_t {
  kWhole,  ///< several tokens are a whole prompt; one token is part of an answer
  /// They end a piece of a prompt, at a fork point; more of the prompt follows. Under prompt=exact
  /// a piece is read as a prompt is; under prompt=once it is refused.
  kMore,
  kPromptEnds,  ///< they end a prompt, even if it is one token
  /// Neither the prompt nor a piece of it ends with them. Refused under prompt=exact and once.
  kPart,
};

/// The work of step() for one session. Other works of the step do not change its bits: they are
/// those of Session::append with the same tokens.
struct Work {
  Session* session = nullptr;
  std::span<const int32_t> tokens = {};
  Append append = Append::kWhole;
  float* logits = nullptr;  ///< [V] receives the logits after the last token; null: not wanted
  /// Draws the next token, as Session::sample does; null: none is drawn.
  Sampler* sampler = nullptr;
  /// Under prompt=exact and once: the most units of a prompt to read now, each a block of tokens
  /// in one layer; 0: all. As many as the model has layers take about as long as a chunk. For
  /// programs that let other sessions decode between them.
  size_t slice = 0;

  // Results.
  int32_t next = -1;                  ///< the token drawn
  std::optional<Error> failure = {};  ///< the error that Session::append or sample would throw
  /// The tokens were appended, even where what follows failed: logits, a draw, a prompt's end.
  bool appended = false;
  /// The prompt is not read through: give the same work again. Until then the session is as it was
  /// before; whatever else is done to it drops what was read.
  bool goes_on = false;
};

class Engine {
 public:
  /// Throws kInvalidArgument for impossible values, kUnsupported for a missing device, and
  /// kOutOfMemory.
  explicit Engine(std::shared_ptr<const Model> model, const EngineOptions& options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Runs the works of one token in one pass, which reads the weights once, and draws their next
  /// tokens. Prompts follow chunk by chunk, in passes of their own. To decode between chunks, pass
  /// prompts chunk by chunk (PromptReader). A failure is reported in its work and changes no other.
  /// Throws kInvalidArgument, before anything runs, for a work without a session, a session of
  /// another engine, or a session that is named twice.
  void step(std::span<Work> works);

  /// The length of the next chunk of a piece with `left` tokens to come. step() and
  /// Session::append split here; a caller who splits here too gets the same bits (PromptReader).
  size_t next_chunk(size_t left) const;

  /// The engine's own memory: scratch.
  Ledger ledger() const;
  /// Bytes of the engine and all its sessions without weights: now, and at most so far. Others of
  /// its runtime count there (Runtime::bytes_in_use), but for codecs' tables, which they share: a
  /// runtime has them once, and each of its engines counts them.
  size_t bytes_in_use() const;
  size_t peak_bytes() const;
  /// Bytes set aside and not in use (Session::try_reserve, steps under way). With those in use they
  /// are what memory_limit bounds.
  size_t bytes_reserved() const;
  /// Changes its runtime's limit between two passes; 0 = none. Bytes beyond a lower limit stay,
  /// and none are added until there is room again.
  void set_memory_limit(size_t bytes);

  const std::shared_ptr<const Model>& model() const;
  const EngineOptions& options() const;  ///< as given; a given runtime fills in its own
  const std::shared_ptr<Runtime>& runtime() const;
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
