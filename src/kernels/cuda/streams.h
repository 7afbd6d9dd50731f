#pragma once
// A stream of our own, and its order with a stream of a caller's.

#include <cuda_runtime_api.h>

namespace pith::cuda {

struct OwnStream {
  OwnStream();
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  cudaStream_t stream = nullptr;
};

/// Work of our stream that is for a caller's: begin() lets ours wait for what the caller's has so
/// far, end() the caller's for what ours has. The host waits for nothing.
class StreamOrder {
 public:
  StreamOrder();
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  /// Throws kUnsupported while the caller's stream is captured into a graph: the host's books would
  /// not move on when it is replayed.
  void begin(cudaStream_t ours, cudaStream_t callers);
  void end(cudaStream_t ours, cudaStream_t callers);

 private:
  cudaEvent_t event_ = nullptr;  // who waits for it waits for what it was when the wait was asked
};

}  // namespace pith::cuda
