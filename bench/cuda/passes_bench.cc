// The cost of sessions that join and leave a pass: the time of a step of N sessions on the GPU,
// the same as before; of one whose company was there before in another order of coming and going;
// and the first of its number. Milliseconds, medians; answers are drawn, so that each step is over.
//   cuda_passes_bench <model folder> [policy] [sessions] [tokens of context]

#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "pith/engine.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/session.h"
#include "timing.h"

namespace {

using namespace pith;
using bench::median;

constexpr size_t kMore = 8;  // sessions than are in a pass

class Company {
 public:
  Company(const std::string& folder, const std::string& policy, size_t sessions, size_t context) {
    const auto model = Model::load(folder);
    EngineOptions o;
    o.device = Device::kCuda;
    o.parallel = sessions;
    o.chunk = 2048;
    engine_ = std::make_shared<Engine>(model, o);
    SessionOptions of;
    of.policy = Policy::parse(policy);
    of.context = context + 1024;
    Session base(engine_, of);
    std::vector<int32_t> prompt(context);
    for (size_t i = 0; i < context; ++i)
      prompt[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(model->config().vocab));
    base.append(prompt);
    for (size_t i = 0; i < sessions + kMore; ++i) sessions_.push_back(base.fork());
  }

  /// Milliseconds of a step of these sessions.
  double step(const std::vector<size_t>& who) {
    const int32_t id = 11;
    std::vector<Work> works;
    for (const size_t i : who) {
      Work w{&sessions_[i], {&id, 1}};
      w.sampler = &greedy_;
      works.push_back(w);
    }
    const double seconds = bench::seconds_of([&] { engine_->step(works); });
    for (const Work& w : works)
      if (w.failure) throw *w.failure;
    return 1e3 * seconds;
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::vector<Session> sessions_;
  Sampler greedy_{SamplingOptions{.temperature = 0}};
};

void measure(const char* folder, const std::string& policy, size_t n, size_t context) {
  Company company(folder, policy, n, context);
  const auto but = [&](size_t from, size_t count) {  // so many, from `from` on, in a ring
    std::vector<size_t> who;
    for (size_t i = 0; i < count; ++i) who.push_back((from + i) % (n + kMore));
    return who;
  };
  const auto note = [&](const char* what, double ms) {
    fmt::print("{{\"what\": \"{}\", \"policy\": \"{}\", \"sessions\": {}, \"ms\": {:.3f}}}\n", what,
               policy, n, ms);
  };
  for (size_t i = 0; i < kMore; ++i) company.step(but(i, n));  // forks go on by themselves
  std::vector<double> same, turned, less;
  for (int i = 0; i < 12; ++i) same.push_back(company.step(but(0, n)));
  for (size_t i = 0; i < 12; ++i) turned.push_back(company.step(but(i + 1, n)));
  note("the first step of one session less", company.step(but(0, n - 1)));
  note("its second step", company.step(but(0, n - 1)));
  for (size_t i = 0; i < 12; ++i) less.push_back(company.step(but(i % 3, n - i % 2)));
  note("the same sessions", median(same));
  note("one has left, one has joined", median(turned));
  note("one more or one less", median(less));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: cuda_passes_bench <model folder> [policy] [sessions] [tokens]\n");
    return 2;
  }
  try {
    measure(argv[1], argc > 2 ? argv[2] : "keydiff(budget=2048)+int4",
            argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 64,
            argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 8192);
  } catch (const Error& e) {
    fmt::print(stderr, "cuda_passes_bench: {}\n", e.what());
    return 1;
  }
  return 0;
}
