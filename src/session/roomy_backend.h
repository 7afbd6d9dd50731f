#pragma once
// Memory that is asked for before a session's pass, or reserved for tokens to come, on either
// device: floors of the counters of what a session takes (core/memory.h).

#include <memory>
#include <optional>

#include "cache/pass_room.h"
#include "core/memory.h"
#include "session/backend.h"

namespace pith {

/// The counters of a session's memory.
class SessionMemory {
 public:
  /// A part of `all`; `limit` bytes are its own at most, 0: no limit.
  SessionMemory(MemoryCounter& all, size_t limit)
      : all_(all), limit_(limit), own_(*whole_, limit_) {}
  ~SessionMemory() {
    if (!left_) whole_->set_floor(0);
  }
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  MemoryCounter& all() const { return all_; }
  size_t limit() const { return limit_; }
  /// Of the bytes that it holds; a copy's are counted by way of it.
  MemoryCounter& own() const { return own_; }
  /// That, and scratch of its steps.
  MemoryCounter& whole() const { return *whole_; }

  /// Sets memory aside for all that this comes to hold. Throws kOutOfMemory with nothing changed.
  void set_room(const PassRoom& room);
  size_t room() const { return floor_; }
  void lower_room(size_t bytes) noexcept { whole_->set_floor(floor_ = bytes); }
  void take_room(SessionMemory& other, size_t bytes);
  void take_room(MemoryCounter& other, size_t bytes);
  /// Its room stays set aside, in the counter that is returned, when all else of it goes.
  std::shared_ptr<MemoryCounter> leave_room() noexcept {
    left_ = true;
    return whole_;
  }

 private:
  MemoryCounter& all_;  // the engine's
  size_t limit_;
  // Tables that forks share outlive it.
  std::shared_ptr<MemoryCounter> whole_ =
      std::make_shared<MemoryCounter>(MemoryCounter::Whole{}, all_);
  mutable MemoryCounter own_;
  size_t floor_ = 0;   // of whole_
  bool left_ = false;  // leave_room
};

/// Asks for a pass's memory by one bound for some tokens ahead, and keeps what was reserved.
class RoomyBackend : public SessionBackend {
 public:
  void ask(const RoomAsked& asked) override;
  void settle() noexcept override;
  void reserve(const RoomAsked& asked) override;
  bool has_room() const override { return kept_ > 0; }
  size_t room(const RoomAsked& asked) const override { return find_room(asked).total(); }
  void take_room(SessionBackend& other) override;
  void take_room_of(std::unique_ptr<SessionBackend> dropped) noexcept override;

 protected:
  RoomyBackend() = default;
  /// Room that is set aside is the original's.
  RoomyBackend(const RoomyBackend& /*o*/) : SessionBackend() {}

  /// The most that is there while tokens come.
  virtual PassRoom find_room(const RoomAsked& asked) const = 0;
  /// Of the session alone: what it shares with forks is copied.
  virtual SessionMemory& own_memory() = 0;
  /// The memory whose room settle() lowers; null: forks share it, and nothing was asked for.
  virtual SessionMemory* settled_memory() noexcept = 0;
  /// Asks for what is not the session's own too: throws kOutOfMemory with nothing changed.
  virtual void hold(SessionMemory& memory, const PassRoom& room) { memory.set_room(room); }
  /// A bound was found for that: what will be asked for follows from it.
  virtual void found(const RoomAsked& /*asked*/) {}
  /// Gives back the memory that hold() asked for, but for a session's own.
  virtual void let_go() noexcept {}
  /// The bound that was found is none any more.
  void forget_bound() { asked_.reset(); }

 private:
  struct Bound {
    size_t from = 0, to = 0;  // tokens
    RoomAsked asked;
    PassRoom room;
    bool covers(size_t now, const RoomAsked& a) const {
      return now >= from && now + a.tokens <= to && a.at_once <= asked.at_once &&
             asked.logits >= a.logits && asked.prompt >= a.prompt;
    }
  };
  void ask_for(const RoomAsked& asked);

  std::optional<Bound> asked_;        // the last that was found
  size_t kept_ = 0, kept_until_ = 0;  // bytes for so many tokens in all
};

}  // namespace pith
