#pragma once

namespace pith {

/// A build without CUDA: throws kUnsupported with how to build one that has it.
[[noreturn]] void refuse_cuda();

}  // namespace pith
