#include "serve/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace pith::serve {
namespace {

size_t step_bytes(const Engine& engine) {
  const ModelConfig& config = engine.model()->config();
  return 4 * engine.options().chunk * sizeof(float) *
         static_cast<size_t>(config.query_heads * config.head_dim);
}

}  // namespace

MemoryBudget::MemoryBudget(std::shared_ptr<Engine> engine, size_t limit, PrefixTree& tree,
                           IdleSessions& idle, const Continuations& continuations)
    : engine_(std::move(engine)),
      limit_(limit),
      step_bytes_(step_bytes(*engine_)),
      tree_(tree),
      idle_(idle),
      continuations_(continuations) {}

size_t MemoryBudget::held() const {
  const Runtime& runtime = *engine_->runtime();
  return runtime.bytes_in_use() + runtime.bytes_reserved();
}

size_t MemoryBudget::lacking(size_t bytes) const {
  const size_t total = held() + bytes;
  return total > limit_ ? total - limit_ : 0;
}

void MemoryBudget::reserve(Session& session, const Task& task) {
  // The last token of an answer is not appended.
  const size_t all = std::min(task.prompt.size() + task.max_tokens, session.context());
  session.reserve(all - session.tokens());
}

bool MemoryBudget::set_aside(std::vector<Session>& rooms, const Task& task) const {
  try {
    while (rooms.size() < task.choices) {
      rooms.emplace_back(engine_, task.session);
      reserve(rooms.back(), task);
    }
    return true;
  } catch (const Error& error) {
    rooms.clear();
    return error.code() != ErrorCode::kOutOfMemory;  // whoever begins it meets the others again
  }
}

void MemoryBudget::keep(const Session& session, const Prompt& prompt) {
  tree_.keep(session, prompt);
  if (const size_t lack = lacking(step_bytes_)) tree_.shrink(lack);
}

// Such a work has changed nothing; memory comes back as others end and snapshots go.
bool MemoryBudget::comes_again(const Work& work, bool others) {
  if (!work.failure || work.failure->code() != ErrorCode::kOutOfMemory || work.appended)
    return false;
  return tree_.shrink(step_bytes_) > 0 || others;
}

MemoryBudget::Room MemoryBudget::make_room(std::vector<Session>& rooms, const Task& task, bool runs,
                                           std::optional<Lack>& last) {
  if (last && last->runs == runs && last->changes == idle_.changes() && held() >= last->held)
    return last->room;
  last.reset();
  ++tries_;
  const Room room = try_room(rooms, task, runs);
  if (room != Room::kThere) last = {room, held(), idle_.changes(), runs};
  return room;
}

// Rooms are tried: scratch that others hold is not asked for twice.
MemoryBudget::Room MemoryBudget::try_room(std::vector<Session>& rooms, const Task& task,
                                          bool runs) {
  for (;;) {
    size_t lack = step_bytes_;
    if (set_aside(rooms, task)) {
      lack = lacking(0);
      if (lack == 0) return Room::kThere;
      rooms.clear();
    }
    if (tree_.shrink(lack) > 0) continue;
    IdleSession* own = continuations_.own_state(task).idle;
    IdleSessions::Freed freed = idle_.free(lack, own);
    if (!freed.now && freed.coming == 0 && !runs && continuations_.fetching() == 0 && own)
      freed = idle_.free(*own);
    idle_.drop_empty();
    if (freed.now) continue;
    return freed.coming > 0 ? Room::kSoon : Room::kNone;
  }
}

Refusal MemoryBudget::no_room() const {
  if (idle_.disk_failure().empty()) {
    Refusal refusal(503, "out_of_memory", "memory that is not the server's to free is in the way");
    refusal.retry_after = 1;
    return refusal;
  }
  return {507, "disk_full",
          fmt::format("memory is full of idle conversations, and none can be written to a file: {}",
                      idle_.disk_failure())};
}

}  // namespace pith::serve
