#pragma once
// The bytes that sessions may come to take, computed by the engine before they are made.

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "pith/session.h"

namespace pith::serve {

/// The most that sessions take, remembered by policy and length. Any thread may ask.
class Costs {
 public:
  explicit Costs(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  /// Bytes of one session after `tokens` tokens at most (Session::room), and of its tables. `key`
  /// names the options. Throws as Session's constructor does.
  size_t bytes(const std::string& key, const SessionOptions& options, size_t tokens);

 private:
  static constexpr size_t kStep = 256;  // tokens that share an answer, the larger end's
  static constexpr size_t kMost = 4096;
  const std::shared_ptr<Engine> engine_;
  std::mutex lock_;
  std::map<std::pair<std::string, size_t>, size_t> known_;
};

}  // namespace pith::serve
