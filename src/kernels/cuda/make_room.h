#pragma once
// Memory of the card that others of the process hold and could do without, such as the unused
// blocks of a framework's allocator.

#include <functional>

namespace pith::cuda {

/// While it lives, an allocation of this thread that the card refuses calls `free_more` and, where
/// that is true, asks once more. Of the thread, since what allocates lies deep below the call that
/// knows whom to ask.
class MakesRoom {
 public:
  explicit MakesRoom(const std::function<bool()>& free_more);  ///< may be empty
  ~MakesRoom();
  MakesRoom(const MakesRoom&) = delete;
  MakesRoom& operator=(const MakesRoom&) = delete;

 private:
  const std::function<bool()>* before_;
};

}  // namespace pith::cuda
