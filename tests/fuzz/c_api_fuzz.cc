// Sequences of calls of the C API, with objects, nulls and numbers at the edges of their types. A
// program must pass real objects and room for what it says there is room for; all else is refused.

#include <array>
#include <climits>
#include <cmath>
#include <cstring>

#include "fuzz/fuzz.h"
#include "pith/pith.h"
#include "pith/pith_layer.h"
#include "pith/pith_prefix.h"

namespace pith::fuzz {
namespace {

constexpr int32_t kVocab = 48;  // of tiny_gguf()
constexpr size_t kDim = 16, kHeads = 2;

constexpr std::array kPolicies = {"exact",
                                  "keydiff(budget=8)+int4,window=4",
                                  "h2o(budget=8)",
                                  "uniform(rate=0.5)+kivi(bits=2)",
                                  "streaming_llm(window=8)",
                                  "express(heavy=0,s=8),window=4",
                                  "exact,prompt=exact",
                                  "snapkv(budget=25%),prompt=once",
                                  "nothing(x=",
                                  ""};

class Program {
 public:
  explicit Program(std::string_view input) : from_(input) {
    static const std::string path = file("c_api.gguf", tiny_gguf()).string();
    done(pith_model_load(path.c_str(), nullptr, &model_, &error_));
  }
  ~Program() {
    for (pith_session* s : sessions_) pith_session_free(s);
    for (pith_sampler* s : samplers_) pith_sampler_free(s);
    for (pith_layer* l : layers_) pith_layer_free(l);
    for (pith_engine* e : engines_) pith_engine_free(e);
    pith_compute_free(compute_);
    pith_model_free(model_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void run() {
    for (int calls = 0; calls < 40 && !from_.ended(); ++calls) call();
  }

 private:
  void call();
  void make_engine();
  void make_session();
  void fork();
  void make_sampler();
  void append();
  void prefill();
  void sample();
  void step();
  void rows();
  void ledger();
  void protect();
  void save_and_restore();
  void tokens();
  void estimate();
  void generate();
  void call_layer();
  void done(pith_status status) {
    const std::string message(error_.message, strnlen(error_.message, sizeof(error_.message)));
    need(status != PITH_INTERNAL, message);
    need(message.size() < sizeof(error_.message), "a message ends");
    need(status == PITH_OK || error_told_ == nullptr || !message.empty(), "a failure says why");
    error_ = PITH_ERROR_INIT;
  }
  /// The error to be filled in; sometimes none.
  pith_error* error() { return error_told_ = from_.below(8) == 0 ? nullptr : &error_; }

  template <class T, size_t N>
  T* one_of(std::array<T*, N>& all) {
    return from_.below(9) == 0 ? nullptr : all[from_.below(N)];
  }
  size_t size() {
    static constexpr std::array<size_t, 10> kSizes = {
        0, 1, 2, 3, 8, 40, 200, 1 << 20, SIZE_MAX / 8, SIZE_MAX};
    return kSizes[from_.below(kSizes.size())];
  }
  int32_t id() {
    static constexpr std::array<int32_t, 6> kIds = {-1, INT32_MIN, INT32_MAX, kVocab, 0, 1};
    return from_.below(10) == 0 ? kIds[from_.below(kIds.size())]
                                : static_cast<int32_t>(from_.below(kVocab));
  }
  /// Up to 64 ids, which stay until the next.
  std::span<const int32_t> ids() {
    ids_.resize(from_.below(3) == 0 ? from_.below(64) : 1 + from_.below(3));
    for (int32_t& x : ids_) x = id();
    return ids_;
  }
  float number() {
    static constexpr std::array<float, 10> kNumbers = {0,        1,      -1,      0.5f, NAN,
                                                       INFINITY, 1e-45f, 3.4e38f, 2,    -INFINITY};
    return kNumbers[from_.below(kNumbers.size())];
  }
  /// [count][2], which stay until the next.
  const int64_t* ranges() {
    static constexpr std::array<int64_t, 8> kEnds = {0, 5, 10, 200, -1, INT64_MAX, INT64_MIN, 41};
    for (int64_t& x : ranges_) x = kEnds[from_.below(kEnds.size())];
    return ranges_.data();
  }
  pith_session_options session_options() {
    pith_session_options o;
    pith_session_defaults(&o, sizeof(o));
    o.policy = from_.below(12) == 0 ? nullptr : kPolicies[from_.below(kPolicies.size())];
    o.context = from_.below(6) == 0 ? size() : 200;
    if (from_.below(6) == 0) o.percent_of = size();
    if (from_.below(6) == 0) o.cache_limit = size();
    if (from_.below(6) == 0) o.protect = ranges(), o.protect_count = from_.below(3);
    if (from_.below(6) == 0) o.probe_rows = 64, o.probe_every = from_.below(3);
    return o;
  }

  Choices from_;
  pith_error error_ = PITH_ERROR_INIT;
  pith_error* error_told_ = nullptr;
  pith_model* model_ = nullptr;
  std::array<pith_engine*, 2> engines_ = {};
  std::array<pith_session*, 3> sessions_ = {};
  std::array<pith_sampler*, 2> samplers_ = {};
  pith_compute* compute_ = nullptr;
  std::array<pith_layer*, 2> layers_ = {};
  std::vector<int32_t> ids_;
  std::array<int64_t, 4> ranges_ = {};
};

template <class T>
void put(T*& slot, T* made, void (*release)(T*)) {
  if (made == nullptr) return;
  release(slot);
  slot = made;
}

void Program::call() {
  using Call = void (Program::*)();
  static constexpr std::array<Call, 18> kCalls = {
      &Program::make_engine,  &Program::make_session,
      &Program::make_session, &Program::fork,
      &Program::make_sampler, &Program::append,
      &Program::append,       &Program::prefill,
      &Program::sample,       &Program::step,
      &Program::rows,         &Program::ledger,
      &Program::protect,      &Program::save_and_restore,
      &Program::tokens,       &Program::estimate,
      &Program::generate,     &Program::call_layer};
  (this->*kCalls[from_.below(kCalls.size())])();
}

void Program::make_engine() {
  pith_engine_options o;
  pith_engine_defaults(&o, sizeof(o));
  o.threads = 1;
  o.chunk = from_.below(5) == 0 ? size() : 16;
  if (from_.below(6) == 0) o.memory_limit = size();
  pith_engine* made = nullptr;
  done(pith_engine_create(from_.below(9) == 0 ? nullptr : model_, &o, &made, error()));
  put(engines_[from_.below(2)], made, pith_engine_free);
}

void Program::make_session() {
  const pith_session_options o = session_options();
  pith_session* made = nullptr;
  done(pith_session_create(one_of(engines_), &o, &made, error()));
  put(sessions_[from_.below(3)], made, pith_session_free);
}

void Program::fork() {
  pith_session* made = nullptr;
  done(pith_session_fork(one_of(sessions_), &made, error()));
  put(sessions_[from_.below(3)], made, pith_session_free);
}

void Program::make_sampler() {
  pith_sampling_options o;
  pith_sampling_defaults(&o, sizeof(o));
  o.temperature = number(), o.top_p = number(), o.top_k = id(), o.repeat_penalty = number();
  if (from_.below(3) == 0) o.never = ids().data(), o.never_count = ids_.size();
  pith_sampler* made = nullptr;
  done(pith_sampler_create(&o, &made, error()));
  put(samplers_[from_.below(2)], made, pith_sampler_free);
}

void Program::append() {
  const auto some = ids();
  done(pith_session_append(one_of(sessions_), some.data(), some.size(),
                           static_cast<pith_append>(from_.below(5)), nullptr, nullptr, error()));
}

void Program::prefill() {
  const float* logits = nullptr;
  const auto some = ids();
  pith_session* session = one_of(sessions_);
  const auto status = pith_session_prefill(session, some.data(), some.size(), &logits, error());
  done(status);
  for (int32_t i = 0; status == PITH_OK && i < kVocab; ++i)
    need(std::isfinite(logits[i]), "logits are finite");
}

void Program::sample() {
  int32_t token = -1;
  const auto status = pith_session_sample(one_of(sessions_), one_of(samplers_), &token, error());
  done(status);
  need(status != PITH_OK || (token >= 0 && token < kVocab), "a token is drawn");
}

void Program::step() {
  std::array<pith_work, 3> works = {};
  std::array<std::vector<int32_t>, 3> tokens;
  for (size_t i = 0; i < 3; ++i) {
    const auto some = ids();
    tokens[i].assign(some.begin(), some.end());
    works[i].size = sizeof(pith_work);
    works[i].session = one_of(sessions_), works[i].tokens = tokens[i].data();
    works[i].count = tokens[i].size(), works[i].sampler = one_of(samplers_);
    works[i].how = static_cast<int32_t>(from_.below(5));
  }
  done(pith_engine_step(one_of(engines_), works.data(), from_.below(4), error()));
  for (const pith_work& w : works) need(w.status != PITH_INTERNAL, "no work is a bug of ours");
}

void Program::rows() {
  std::array<int64_t, 64> positions;
  pith_rows rows = {};
  rows.size = sizeof(rows), rows.capacity = from_.below(65);
  rows.positions = from_.below(5) == 0 ? nullptr : positions.data();
  done(pith_session_rows(one_of(sessions_), id() % 3, id() % 3, &rows, error()));
}

void Program::ledger() {
  pith_ledger ledger = {};
  ledger.size = sizeof(ledger);
  done(pith_session_ledger(one_of(sessions_), &ledger, error()));
}

void Program::protect() {
  done(pith_session_reserve(one_of(sessions_), from_.below(40), error()));
  done(pith_session_protect(one_of(sessions_), ranges(), from_.below(3), error()));
}

void Program::save_and_restore() {
  static const std::string path = (folder() / "c_api.pith").string();
  done(pith_session_save(one_of(sessions_), path.c_str(), from_.below(4) > 0, error()));
  const pith_session_options o = session_options();
  pith_session* made = nullptr;
  done(pith_session_restore(one_of(engines_), path.c_str(), &o, &made, error()));
  put(sessions_[from_.below(3)], made, pith_session_free);
}

void Program::tokens() {
  std::array<char, 64> text;
  std::array<int32_t, 16> out;
  size_t count = 0;
  done(pith_tokenize(model_, "the <s> \xc3\xb6", 10, 1, out.data(), from_.below(17), &count,
                     error()));
  const auto some = ids();
  done(pith_detokenize(model_, some.data(), some.size(), text.data(), from_.below(65), &count,
                       error()));
}

void Program::estimate() {
  const pith_session_options o = session_options();
  pith_ledger ledger = {};
  ledger.size = sizeof(ledger);
  done(pith_estimate(model_, &o, 0, size(), &ledger, error()));
}

void Program::generate() {
  pith_generate_options o;
  pith_generate_defaults(&o, sizeof(o));
  o.max_tokens = static_cast<int64_t>(from_.below(5)) - 1;
  o.ignore_eos = from_.below(2);
  if (o.max_tokens < 0) o.max_tokens = 20;
  const auto some = ids();
  done(pith_generate(one_of(sessions_), some.data(), some.size(), &o, nullptr, error()));
}

void Program::call_layer() {
  pith_layer*& layer = layers_[from_.below(2)];
  if (compute_ == nullptr) {
    pith_compute_options o;
    pith_compute_defaults(&o, sizeof(o));
    o.threads = 1;
    done(pith_compute_create(&o, &compute_, &error_));
  }
  if (layer == nullptr || from_.below(6) == 0) {
    pith_layer_options o;
    pith_layer_defaults(&o, sizeof(o));
    o.policy = kPolicies[from_.below(kPolicies.size())];
    o.query_heads = from_.below(9) == 0 ? id() : kHeads, o.kv_heads = 1;
    o.head_dim = from_.below(9) == 0 ? id() : static_cast<int32_t>(kDim);
    o.context = from_.below(9) == 0 ? size() : 200;
    o.rope_theta = from_.below(5) == 0 ? number() : 10000;
    if (o.context > 1 << 20) o.context = 1 << 20;
    pith_layer* made = nullptr;
    done(pith_layer_create(compute_, &o, &made, error()));
    // Tensors tell no sizes: what they are given below is for one shape alone.
    if (o.query_heads == kHeads && o.head_dim == kDim) return put(layer, made, pith_layer_free);
    return pith_layer_free(made);
  }
  std::vector<float> q(64 * kHeads * kDim, 0.5f), out(q.size()), k(64 * kDim, 0.25f);
  for (float& x : k) x = from_.below(50) == 1 ? number() : x + static_cast<float>(from_.below(7));
  const auto tensor = [&](std::vector<float>& x, size_t heads) {
    return pith_tensor{sizeof(pith_tensor), x.data(), static_cast<ptrdiff_t>(heads * kDim),
                       static_cast<ptrdiff_t>(kDim), PITH_F32};
  };
  const pith_tensor to = tensor(out, kHeads), queries = tensor(q, kHeads), rows = tensor(k, 1);
  const size_t tokens = from_.below(64);
  switch (from_.below(4)) {
    case 0: return done(pith_layer_append(layer, &rows, &rows, tokens, error()));
    case 1: return done(pith_layer_end_prompt(layer, error()));
    case 2: {
      pith_layer* made = nullptr;
      done(pith_layer_clone(layer, &made, error()));
      return put(layers_[0], made, pith_layer_free);
    }
    default: return done(pith_layer_step(layer, &to, &queries, &rows, &rows, tokens, error()));
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (int i = 1; i < 17; ++i) {
    std::string seed(1, '\0');
    // An engine, sessions, then anything.
    seed += std::string("\0\1\1\1", 4);
    for (int j = 0; j < 300; ++j) seed += static_cast<char>(i * j * 7 + j * j * i + 5 * i);
    all.push_back(seed);
  }
  return all;
}

bool run(std::string_view input) {
  Program(input).run();
  return true;
}

}  // namespace

std::span<const Target> c_api_targets() {
  static const Target all[] = {{"c_api", seeds, run}};
  return all;
}

}  // namespace pith::fuzz
