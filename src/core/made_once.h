#pragma once
// Things that are made once, however many use them and as long as one does.

#include <map>
#include <memory>
#include <string>

namespace pith {

/// By names that say all that they depend on.
template <class T>
class MadeOnce {
 public:
  template <class Make>
  std::shared_ptr<const T> of(const std::string& name, const Make& make) {
    if (auto there = find(name)) return there;
    std::shared_ptr<const T> made = make();
    add(name, made);
    return made;
  }
  /// Null: nobody has it.
  std::shared_ptr<const T> find(const std::string& name) const {
    const auto at = all_.find(name);
    return at == all_.end() ? nullptr : at->second.lock();
  }
  void add(const std::string& name, const std::shared_ptr<const T>& made) {
    std::erase_if(all_, [](const auto& e) { return e.second.expired(); });
    all_[name] = made;
  }

 private:
  std::map<std::string, std::weak_ptr<const T>> all_;
};

}  // namespace pith
