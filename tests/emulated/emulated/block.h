#pragma once
// A block of threads of a kernel on the CPU: each thread is a fiber, which runs until it must meet
// others. Orders that CUDA leaves open (of blocks, warps, lanes) are drawn, so that what relies on
// one of them shows.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace emulated {

inline constexpr int kLanes = 32;

struct Warp;

struct Lane {
  enum class State : uint8_t { kReady, kAtBarrier, kMeets, kPolls, kEnded };

  uint3 thread{};
  int lane = 0;
  Warp* warp = nullptr;
  State state = State::kReady;
  uint32_t mask = 0;                           // while it meets others: which
  void (*meeting)(Warp&, uint32_t) = nullptr;  // what they do
  void* slot = nullptr;                        // what it brings and takes
  int vote = 0;                                // at a barrier
  struct Copy {
    void* to;
    const void* from;
  };
  std::vector<std::vector<Copy>> copies;  // groups that nothing has waited for; the last is open
};

struct Warp {
  Lane* lane[kLanes] = {};
  uint32_t alive = 0;  // lanes that have not ended
  int meeting = 0;     // lanes that wait for others of the warp
  bool alike = true;   // all of them for the same as the first
  Lane* first = nullptr;
};

/// Of the thread that runs. One runs at a time in the whole process.
inline Lane* current = nullptr;
inline dim3 grid, block;
inline uint3 block_index{};
alignas(1024) inline unsigned char launched_shared[256 << 10];

/// Runs body() once a thread of the grid.
void run_grid(const cudaLaunchConfig_t& shape, const std::function<void()>& body);

/// Waits until all lanes of `mask` that have not ended are in the same meeting, which runs once and
/// reads and writes their slots.
void meet(uint32_t mask, void (*meeting)(Warp&, uint32_t), void* slot);
/// Waits for all threads of the block; returns how many came with `vote`.
int barrier(int vote);

/// Others run before the calling lane looks again at what they change in shared memory; who changes
/// what lanes poll counts it in `events`: else threads that wait for ever are not seen.
void poll();
inline uint64_t events = 0;
/// Arrives at barrier `number`, of which `threads` threads are a phase; waits for it if `waits`.
void named_barrier(int number, int threads, bool waits);

/// The calling lane's copies to shared memory arrive when it waits for them, not before.
void start_copy(void* to, const void* from);
void end_copy_group();
void await_copies(int pending);

/// Writes why to stderr and ends the process: a kernel's fault, as a card would report it.
[[noreturn]] void fail(const char* why);

/// 32-bit addresses of shared memory.
uint32_t shared_address(const void* p);
void* shared_at(uint32_t address);

}  // namespace emulated
