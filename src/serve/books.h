#pragma once
// Memory by reservation: what a session may come to take is set aside before it begins, so that no
// answer is ever ended for want of memory.

#include <cstddef>
#include <map>
#include <string>
#include <tuple>

#include "pith/session.h"

namespace pith::serve {

/// The most that sessions take, remembered by policy and length: an estimate builds a cache.
class Costs {
 public:
  Costs(const ModelConfig& config, Device device) : config_(config), device_(device) {}
  /// Bytes of one session after `tokens` tokens at most. `key` names the options. Throws as
  /// estimate_ledger does.
  size_t bytes(const std::string& key, const SessionOptions& options, size_t tokens);

 private:
  static constexpr size_t kStep = 256;  // tokens that share an estimate, the larger end's
  static constexpr size_t kMost = 4096;
  ModelConfig config_;
  Device device_;
  std::map<std::pair<std::string, size_t>, size_t> known_;
};

/// What is taken and promised of the budget.
class Books {
 public:
  explicit Books(size_t budget) : budget_(budget) {}
  size_t budget() const { return budget_; }
  size_t reserved() const { return reserved_; }
  /// Bytes that would have to be freed for `bytes` more; 0: they fit. `in_use`: what is allocated
  /// now; `live`: of it, what the sessions with reservations hold.
  size_t lacking(size_t bytes, size_t in_use, size_t live) const;
  void reserve(size_t bytes) { reserved_ += bytes; }
  void release(size_t bytes) { reserved_ -= bytes; }

 private:
  size_t budget_, reserved_ = 0;
};

}  // namespace pith::serve
