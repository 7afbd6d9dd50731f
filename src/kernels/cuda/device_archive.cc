#include "kernels/cuda/device_archive.h"

#include <algorithm>
#include <vector>

#include "core/finite.h"

namespace pith::cuda {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;  // on the host at once, where runs are shorter

}  // namespace

void archive_runs(Archive& a, const DeviceRuns& runs, cudaStream_t stream,
                  const LoadedCheck& check_loaded) {
  if (runs.width == 0 || runs.count == 0) return;
  if (a.counts()) return a.raw(nullptr, runs.count * runs.width);
  a.check_left(runs.count, runs.width);
  const size_t most = std::max<size_t>(1, kPieceBytes / runs.width);
  std::vector<std::byte> host(std::min(most, runs.count) * runs.width);
  for (size_t first = 0; first < runs.count; first += most) {
    const size_t count = std::min(most, runs.count - first), bytes = count * runs.width;
    std::byte* at = static_cast<std::byte*>(runs.data) + first * runs.pitch;
    if (a.loads()) {
      a.raw(host.data(), bytes);
      if (check_loaded) check_loaded({host.data(), bytes});
      check(cudaMemcpy2DAsync(at, runs.pitch, host.data(), runs.width, runs.width, count,
                              cudaMemcpyHostToDevice, stream),
            "state that is loaded");
      check(cudaStreamSynchronize(stream), "state that is loaded");
    } else {
      check(cudaMemcpy2DAsync(host.data(), runs.width, at, runs.pitch, runs.width, count,
                              cudaMemcpyDeviceToHost, stream),
            "state that is saved");
      check(cudaStreamSynchronize(stream), "state that is saved");
      a.raw(host.data(), bytes);
    }
  }
}

void archive_finite(Archive& a, const DeviceRuns& runs, DType dtype, cudaStream_t stream) {
  archive_runs(a, runs, stream, [&](std::span<const std::byte> bytes) {
    a.need(!has_non_finite(bytes.data(), dtype, bytes.size() / size_of(dtype)),
           "a number is not finite");
  });
}

}  // namespace pith::cuda
