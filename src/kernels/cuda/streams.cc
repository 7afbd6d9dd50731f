#include "kernels/cuda/streams.h"

#include "kernels/cuda/device.h"
#include "pith/error.h"

namespace pith::cuda {

OwnStream::OwnStream() {
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
}
OwnStream::~OwnStream() {
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}

StreamOrder::StreamOrder() {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event");
}
StreamOrder::~StreamOrder() { cudaEventDestroy(event_); }

void StreamOrder::begin(cudaStream_t ours, cudaStream_t callers) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(callers, &capture), "the caller's stream");
  if (capture != cudaStreamCaptureStatusNone)
    throw Error(ErrorCode::kUnsupported,
                "a layer's cache was called while its stream is captured into a CUDA graph; where "
                "rows go changes with each call, so that a graph cannot be replayed: call it "
                "outside of the capture");
  check(cudaEventRecord(event_, callers), "the caller's stream");
  check(cudaStreamWaitEvent(ours, event_, 0), "the wait for the caller's stream");
}

void StreamOrder::end(cudaStream_t ours, cudaStream_t callers) {
  check(cudaEventRecord(event_, ours), "the end of a call");
  check(cudaStreamWaitEvent(callers, event_, 0), "the caller's wait");
}

}  // namespace pith::cuda
