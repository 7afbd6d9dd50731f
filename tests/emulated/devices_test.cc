// A machine of two GPUs, by name.

#include "cuda/random_model.h"
#include "cuda/sessions.h"
#include "model/cuda/device_weights.h"

namespace pith::cuda {
namespace {

TEST(EmulatedDevices, WeightsAreThereOnceForEachDevice) {
  const auto model = RandomModelFolder({}).load();
  const auto first = DeviceWeights::of(model);
  EXPECT_EQ(DeviceWeights::of(model), first);
  check(cudaSetDevice(1), "the other device");
  const auto second = DeviceWeights::of(model);
  EXPECT_NE(second, first);
  EXPECT_EQ(second->bytes(), first->bytes());
  EXPECT_EQ(DeviceWeights::of(model), second);
  check(cudaSetDevice(0), "the first device");
  EXPECT_EQ(DeviceWeights::of(model), first);
}

}  // namespace
}  // namespace pith::cuda
