#include "runtime/runtime.h"

#include <fmt/format.h>
#include <unistd.h>

#include "pith/error.h"

namespace pith {
namespace {

const RuntimeOptions& checked(const RuntimeOptions& o) {
  check_threads(o.threads);
  if (o.device == Device::kCuda && !o.isa.empty())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the instruction set '{}' was asked for on the GPU; it is the CPU's: "
                            "leave it empty",
                            o.isa));
  return o;
}

std::unique_ptr<RuntimeBackend> make_backend(const RuntimeOptions& o) {
  if (o.device == Device::kCuda) return make_cuda_runtime(o);
  return std::make_unique<CpuRuntime>(o);
}

}  // namespace

void check_threads(int threads) {
  if (threads < 0 || threads > 1024)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} threads; choose 1 to 1024, or 0 for all cores", threads));
}

Runtime::State::State(const RuntimeOptions& o)
    : options(checked(o)), process(::getpid()), backend(make_backend(options)) {}

void Runtime::State::check_process() const {
  if (::getpid() == process) return;
  throw Error(ErrorCode::kUnsupported,
              "a Runtime was made before fork() and is used in the child, which does not have its "
              "threads; make one in each process");
}

Runtime::Runtime(const RuntimeOptions& options) : state_(std::make_unique<State>(options)) {}
Runtime::~Runtime() = default;
size_t Runtime::bytes_in_use() const { return state_->backend->memory.total(); }
size_t Runtime::peak_bytes() const { return state_->backend->memory.peak(); }
size_t Runtime::bytes_reserved() const { return set_aside(state_->backend->memory); }
void Runtime::set_memory_limit(size_t bytes) {
  const std::lock_guard turn(state_->backend->turn);
  state_->backend->memory.set_limit(bytes);
}
const RuntimeOptions& Runtime::options() const { return state_->options; }
Device Runtime::device() const { return state_->options.device; }
int Runtime::threads() const { return state_->backend->threads(); }
const char* Runtime::isa() const { return state_->backend->isa(); }

}  // namespace pith
