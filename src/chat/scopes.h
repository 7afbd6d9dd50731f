#pragma once
// Names and their values while a template runs: scopes within scopes. A running macro sees its own
// and those that were seen where it stands.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace pith::chat {

using Scope = std::map<std::string, Value, std::less<>>;

class Scopes {
 public:
  explicit Scopes(Scope variables) { scopes_.push_back(std::move(variables)); }

  /// A scope within the others while it lives.
  class Inner {
   public:
    explicit Inner(Scopes& all) : all_(all) { all_.scopes_.emplace_back(); }
    ~Inner() { all_.scopes_.pop_back(); }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    Scopes& all_;
  };
  /// The scope of a macro's body while it lives.
  class Frame {
   public:
    /// `outer`: seen() where the macro stands.
    Frame(Scopes& all, std::shared_ptr<const ScopeRanges> outer)
        : all_(all),
          frame_(std::exchange(all.frame_, all.scopes_.size())),
          outer_(std::exchange(all.outer_, std::move(outer))),
          inner_(all) {}
    ~Frame() {
      all_.frame_ = frame_;
      all_.outer_ = std::move(outer_);
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scopes& all_;
    size_t frame_;
    std::shared_ptr<const ScopeRanges> outer_;
    Inner inner_;
  };

  /// In the innermost scope.
  void set(const std::string& name, Value value) {
    scopes_.back().insert_or_assign(name, std::move(value));
  }
  /// A name that nothing set is the library's function, or undefined.
  Value look_up(const std::string& name) const;
  std::shared_ptr<const ScopeRanges> seen() const;

 private:
  std::vector<Scope> scopes_;  // [0]: the template's
  size_t frame_ = 0;           // the running macro sees scopes from here, then those of outer_
  std::shared_ptr<const ScopeRanges> outer_ = std::make_shared<const ScopeRanges>();
};

}  // namespace pith::chat
