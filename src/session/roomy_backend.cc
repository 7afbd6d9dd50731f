#include "session/roomy_backend.h"

#include <algorithm>
#include <utility>

#include "pith/error.h"

namespace pith {

void SessionMemory::set_room(const PassRoom& room) {
  const size_t wanted = room.total();
  whole_->set_floor(wanted);
  try {
    own_.set_floor(room.cache);  // refused where its own limit is lower
  } catch (...) {
    whole_->set_floor(floor_);
    throw;
  }
  own_.set_floor(0);
  floor_ = wanted;
}

void SessionMemory::take_room(SessionMemory& other, size_t bytes) {
  take_room(*other.whole_, bytes);
  other.floor_ = 0;
}

void SessionMemory::take_room(MemoryCounter& other, size_t bytes) {
  MemoryCounter::move_floor(other, *whole_, bytes);
  floor_ = bytes;
}

void RoomyBackend::ask_for(const RoomAsked& asked) {
  const size_t now = tokens();
  if (!asked_ || !asked_->covers(now, asked)) {
    asked_ = Bound{now, now + asked.tokens, asked, find_room(asked)};
    found(asked);
  }
  const PassRoom& found = asked_->room;
  const PassRoom room{found.cache, std::max(found.total(), kept_) - found.cache};
  hold(own_memory(), room);
}

void RoomyBackend::ask(const RoomAsked& asked) {
  own_memory();
  if (kept_ > 0 && tokens() + asked.tokens <= kept_until_) return;  // there is room
  if (asked.tokens > 1 || asked.prompt) return ask_for(asked);
  // The bound of one token is hardly less than that of some: it is found for all of them.
  constexpr size_t kAhead = 64;
  RoomAsked ahead = asked;
  if (!asked_ || !asked_->covers(tokens(), asked)) ahead.tokens = kAhead;
  try {
    ask_for(ahead);
  } catch (const Error&) {
    asked_.reset();
    ask_for(asked);
  }
}

void RoomyBackend::settle() noexcept {
  if (kept_ > 0 && tokens() >= kept_until_) kept_ = 0;
  if (SessionMemory* memory = settled_memory()) memory->lower_room(kept_);
  if (kept_ == 0) let_go();
}

void RoomyBackend::reserve(const RoomAsked& asked) {
  SessionMemory& memory = own_memory();
  if (asked.tokens == 0) {
    kept_ = 0;
    memory.lower_room(0);
    return let_go();
  }
  const PassRoom most = find_room(asked);
  found(asked);
  hold(memory, most);
  kept_ = most.total();
  kept_until_ = tokens() + asked.tokens;
}

void RoomyBackend::take_room(SessionBackend& other) {
  auto& from = static_cast<RoomyBackend&>(other);
  if (from.kept_ == 0) return;
  own_memory().take_room(from.own_memory(), from.kept_);
  kept_ = std::exchange(from.kept_, 0);
  kept_until_ = from.kept_until_;
}

void RoomyBackend::take_room_of(std::unique_ptr<SessionBackend> dropped) noexcept {
  auto& from = static_cast<RoomyBackend&>(*dropped);
  const size_t bytes = from.kept_, until = from.kept_until_;
  SessionMemory* memory = bytes > 0 ? from.settled_memory() : nullptr;
  const std::shared_ptr<MemoryCounter> room = memory ? memory->leave_room() : nullptr;
  dropped.reset();
  if (!room) return;
  try {
    own_memory().take_room(*room, bytes);
    kept_ = bytes;
    kept_until_ = until;
  } catch (...) {
    room->set_floor(0);
  }
}

}  // namespace pith
