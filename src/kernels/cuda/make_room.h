#pragma once
// Memory of the card that others of the process hold and could do without, such as the unused
// blocks of a framework's allocator.

#include <cstddef>
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

/// Bytes that the card could give: those that are free, and those that the driver keeps for this
/// process. Others may take them meanwhile. Throws kOutOfMemory if they are fewer than `bytes`.
size_t check_card_has(size_t bytes);

}  // namespace pith::cuda
