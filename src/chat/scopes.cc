#include "chat/scopes.h"

#include <algorithm>

#include "chat/library.h"

namespace pith::chat {

Value Scopes::look_up(const std::string& name) const {
  const Value* found = nullptr;
  const auto search = [&](size_t first, size_t end) {
    for (size_t i = std::min(end, scopes_.size()); i > first && found == nullptr; --i) {
      const auto at = scopes_[i - 1].find(name);
      if (at != scopes_[i - 1].end()) found = &at->second;
    }
  };
  search(frame_, scopes_.size());
  for (const auto& [first, end] : *outer_) search(first, end);
  if (found != nullptr) return *found;
  if (find_global(name) != nullptr) return Value(Function{nullptr, name});
  return Value(Undefined{std::make_shared<const std::string>(name)});
}

std::shared_ptr<const ScopeRanges> Scopes::seen() const {
  ScopeRanges seen = {{frame_, scopes_.size()}};
  seen.insert(seen.end(), outer_->begin(), outer_->end());
  return std::make_shared<const ScopeRanges>(std::move(seen));
}

}  // namespace pith::chat
