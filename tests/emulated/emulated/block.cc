#include "emulated/block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

namespace emulated {
namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = size_t{256} << 10;

/// A thread of the block, or what runs them.
struct Thread {
  Lane lane;
  context::fcontext_t place = nullptr;  // where it goes on

  /// Goes on at `to`; returns when somebody goes on here.
  void go_to(Thread& to) {
    const context::transfer_t from = context::jump_fcontext(to.place, &place);
    note(from);
  }
  /// Who came from where.
  static void note(const context::transfer_t& from) {
    *static_cast<context::fcontext_t*>(from.data) = from.fctx;
  }
};

/// Thread i's, kept from block to block.
std::byte* stack_end(size_t i) {
  static std::vector<std::unique_ptr<std::byte[]>> all;
  while (all.size() <= i) all.emplace_back(new std::byte[kStackBytes]);
  return all[i].get() + kStackBytes;
}

class Block {
 public:
  Block(const dim3& size, std::mt19937& order) : order_(order) {
    const unsigned count = size.x * size.y * size.z;
    threads_.resize(count);
    warps_.resize((count + kLanes - 1) / kLanes);
    for (unsigned i = 0; i < count; ++i) {
      Lane& lane = threads_[i].lane;
      lane.thread = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
      lane.lane = static_cast<int>(i % kLanes);
      lane.warp = &warps_[i / kLanes];
      lane.warp->lane[lane.lane] = &lane;
    }
    turns_.resize(warps_.size());
    std::iota(turns_.begin(), turns_.end(), 0);
  }

  void run(const std::function<void()>& body) {
    alive_ = threads_.size();
    named_.fill({});
    for (Warp& warp : warps_) warp.alive = 0;
    for (Thread& thread : threads_) {
      Lane& lane = thread.lane;
      lane.state = Lane::State::kReady;
      lane.copies.clear();
      lane.warp->alive |= 1u << lane.lane;
      thread.place = context::make_fcontext(
          stack_end(static_cast<size_t>(&thread - threads_.data())), kStackBytes, start);
    }
    body_ = &body;
    while (alive_ > 0) {
      std::shuffle(turns_.begin(), turns_.end(), order_);
      const uint64_t before = events + alive_;
      for (const unsigned warp : turns_) run_warp(warp);
      if (alive_ == 0) return;
      if (look_again()) {
        if (before == events + alive_) fail("threads of a block wait for ever: nobody arrives");
        continue;
      }
      for (const Thread& thread : threads_) {
        const auto state = thread.lane.state;
        if (state != Lane::State::kEnded && state != Lane::State::kAtBarrier)
          fail("threads of a warp wait for ever: lanes of one mask are in different places");
      }
      release();
    }
  }

  void wait_as(Lane& lane, Lane::State state) {
    lane.state = state;
    thread_of(lane).go_to(after(lane));
    current = &lane;
  }

  static void settle(Lane& of) {
    Warp& warp = *of.warp;
    const uint32_t who = of.mask & warp.alive;
    if (warp.meeting < std::popcount(who)) return;
    for (uint32_t left = warp.alike ? 0 : who; left; left &= left - 1) {
      const Lane& other = *warp.lane[std::countr_zero(left)];
      const bool here = other.state == Lane::State::kMeets && other.meeting == of.meeting &&
                        other.mask == of.mask;
      if (!here) return;
    }
    of.meeting(warp, who);
    for (uint32_t left = who; left; left &= left - 1) {
      warp.lane[std::countr_zero(left)]->state = Lane::State::kReady;
      --warp.meeting;
    }
  }

  int votes() const { return votes_; }

  void poll(Lane& lane) {
    lane.state = Lane::State::kPolls;
    thread_of(lane).go_to(runner_);
    current = &lane;
  }

  struct Named {
    int arrived = 0;
    unsigned phase = 0;
  };
  Named& named(int number) { return named_.at(static_cast<size_t>(number)); }

 private:
  static void start(context::transfer_t from);

  Thread& thread_of(const Lane& lane) {
    return threads_[lane.thread.x + block.x * (lane.thread.y + block.y * lane.thread.z)];
  }

  /// Who runs when `lane` cannot: a lane of its warp, or else who runs warps.
  Thread& after(const Lane& lane) {
    const Warp& warp = *lane.warp;
    for (int i = 1; i < kLanes; ++i) {
      Lane* next = warp.lane[(lane.lane + i) % kLanes];
      if (!next || next->state != Lane::State::kReady) continue;
      current = next;
      return thread_of(*next);
    }
    return runner_;
  }

  void end(Lane& lane) {
    lane.state = Lane::State::kEnded;
    Warp& warp = *lane.warp;
    warp.alive &= ~(1u << lane.lane);
    --alive_;
    for (uint32_t left = warp.alive; left; left &= left - 1) {
      Lane& other = *warp.lane[std::countr_zero(left)];
      if (other.state == Lane::State::kMeets) settle(other);
    }
  }

  void run_warp(unsigned warp) {
    const size_t first = size_t{warp} * kLanes;
    const size_t count = std::min<size_t>(kLanes, threads_.size() - first), turn = order_() % count;
    for (size_t i = 0; i < count; ++i) {
      Thread& thread = threads_[first + (i + turn) % count];
      if (thread.lane.state != Lane::State::kReady) continue;
      current = &thread.lane;
      runner_.go_to(thread);
    }
  }

  /// Whether threads poll, which go on then.
  bool look_again() {
    bool any = false;
    for (Thread& thread : threads_) {
      if (thread.lane.state != Lane::State::kPolls) continue;
      thread.lane.state = Lane::State::kReady;
      any = true;
    }
    return any;
  }

  void release() {
    votes_ = 0;
    for (Thread& thread : threads_) {
      if (thread.lane.state != Lane::State::kAtBarrier) continue;
      votes_ += thread.lane.vote;
      thread.lane.state = Lane::State::kReady;
    }
  }

  std::mt19937& order_;
  const std::function<void()>* body_ = nullptr;
  Thread runner_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> turns_;
  std::array<Named, 16> named_{};
  size_t alive_ = 0;
  int votes_ = 0;
};

Block* running = nullptr;

void Block::start(context::transfer_t from) {
  Thread::note(from);
  Lane& lane = *current;
  (*running->body_)();
  running->end(lane);
  running->thread_of(lane).go_to(running->after(lane));
}

}  // namespace

void run_grid(const cudaLaunchConfig_t& shape, const std::function<void()>& body) {
  static std::mt19937 order(1);
  grid = shape.gridDim;
  block = shape.blockDim;
  Block all(block, order);
  running = &all;
  const unsigned count = grid.x * grid.y * grid.z, turn = order() % count;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned at = (i + turn) % count;
    block_index = {at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y)};
    all.run(body);
  }
  running = nullptr;
  current = nullptr;
}

void meet(uint32_t mask, void (*meeting)(Warp&, uint32_t), void* slot) {
  Lane& lane = *current;
  if (!(mask >> lane.lane & 1)) fail("a lane is not in the mask that it names");
  ++events;
  lane.mask = mask;
  lane.meeting = meeting;
  lane.slot = slot;
  lane.state = Lane::State::kMeets;
  Warp& warp = *lane.warp;
  const bool first = warp.meeting++ == 0;
  if (first) warp.first = &lane;
  warp.alike = first || (warp.alike && warp.first->mask == mask && warp.first->meeting == meeting);
  Block::settle(lane);
  if (lane.state == Lane::State::kMeets) running->wait_as(lane, Lane::State::kMeets);
}

int barrier(int vote) {
  Lane& lane = *current;
  lane.vote = vote;
  running->wait_as(lane, Lane::State::kAtBarrier);
  return running->votes();
}

void poll() { running->poll(*current); }

void named_barrier(int number, int threads, bool waits) {
  Block::Named& b = running->named(number);
  const unsigned phase = b.phase;
  ++events;
  if (++b.arrived == threads) {
    b.arrived = 0;
    ++b.phase;
  }
  while (waits && b.phase == phase) poll();
}

void start_copy(void* to, const void* from) {
  if (current->copies.empty()) current->copies.emplace_back();
  current->copies.back().push_back({to, from});
}
void end_copy_group() {
  if (current->copies.empty()) current->copies.emplace_back();
  current->copies.emplace_back();
}
void await_copies(int pending) {
  auto& groups = current->copies;
  const auto ended = static_cast<ptrdiff_t>(groups.size()) - 1;
  const ptrdiff_t arrive = ended - pending;
  for (ptrdiff_t i = 0; i < arrive; ++i) {
    for (const Lane::Copy& copy : groups[static_cast<size_t>(i)])
      std::memcpy(copy.to, copy.from, 16);
  }
  if (arrive > 0) groups.erase(groups.begin(), groups.begin() + arrive);
}

void fail(const char* why) {
  std::fprintf(stderr, "emulated card: %s", why);
  if (current)
    std::fprintf(stderr, " (block %u,%u,%u of %u,%u,%u; thread %u of %u)", block_index.x,
                 block_index.y, block_index.z, grid.x, grid.y, grid.z, current->thread.x, block.x);
  std::fputc('\n', stderr);
  std::abort();
}

// Shared memory of kernels lies in the program's own data, which is less than 4 GB.
uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) -
                               reinterpret_cast<uintptr_t>(launched_shared) + 0x80000000u);
}
void* shared_at(uint32_t address) {
  return launched_shared + (static_cast<int64_t>(address) - 0x80000000ll);
}

}  // namespace emulated
