#pragma once
// Names of methods that programs add at run time.

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/options.h"

namespace pith {

/// Words that say a size where policies are read too.
inline constexpr std::array<const char*, 4> kSizeWords{"auto", "half", "quarter", "tenth"};

/// All that programs added of one kind, by name: a registry row and T, the functions. Entries
/// are never taken out, so rows stay where they are. A policy is a text, and texts are read in
/// places that no table could be handed to (docs/decisions/0311).
template <class Row, class T>
class OwnTable {
 public:
  /// `make_row` makes the row of a new name; `fits(earlier)` throws for functions that may not
  /// follow those of the name.
  template <class MakeRow, class Fits>
  void add(const std::string& name, const T& added, MakeRow&& make_row, Fits&& fits) {
    auto shared = std::make_shared<const T>(added);
    const std::lock_guard lock(mutex_);
    const auto at = all_.find(name);
    if (at == all_.end()) {
      all_.emplace(name, Entry{make_row(), std::move(shared)});
      return;
    }
    fits(*at->second.functions);
    at->second.functions = std::move(shared);
  }
  /// Null if it was not added.
  const Row* find(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    const auto at = all_.find(name);
    return at == all_.end() ? nullptr : &at->second.row;
  }
  std::shared_ptr<const T> functions(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    return all_.at(name).functions;
  }
  std::vector<const Row*> rows() const {
    const std::lock_guard lock(mutex_);
    std::vector<const Row*> rows;
    for (const auto& [name, entry] : all_) rows.push_back(&entry.row);
    return rows;
  }

 private:
  struct Entry {
    Row row;
    std::shared_ptr<const T> functions;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> all_;
};

/// MethodRow::read of a method that was added: O has a `name`, which says which one it is.
template <class O>
MethodOptions read_named(const PolicyPart& part) {
  O options = read_options<O>(part).template as<O>();
  options.name = part.name;
  return MethodOptions(std::move(options));
}

/// How many selectors and codecs programs have added.
size_t added_methods();

/// Throws kInvalidArgument, as `function`, for what is no name or is another method's.
void check_own_name(const std::string& function, const std::string& name, bool selector);

}  // namespace pith
