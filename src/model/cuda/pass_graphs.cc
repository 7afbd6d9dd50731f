#include "model/cuda/pass_graphs.h"

#include <algorithm>
#include <utility>

namespace pith::cuda {
namespace {

constexpr size_t kMostPasses = 64;  // that are remembered

}  // namespace

TokenPass& PassGraphs::find(TokenPass pass) {
  const auto found =
      std::ranges::find_if(passes_, [&](const TokenPass& p) { return p.same_as(pass); });
  if (found == passes_.end()) {
    if (passes_.size() == kMostPasses) passes_.pop_front();
    return passes_.emplace_back(std::move(pass));
  }
  passes_.splice(passes_.end(), passes_, found);
  if (!std::ranges::equal(pass.blocks, found->blocks, std::ranges::less_equal{})) {
    found->blocks = pass.blocks;
    found->graph.reset();
  }
  return *found;
}

void PassGraphs::launch(TokenPass& pass, const std::function<void()>& work) const {
  if (!pass.graph) {
    const CapturedGraph graph = capture(work);
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph.get(), 0), "the decode graph");
    pass.graph.reset(exec);
  }
  check(cudaGraphLaunch(pass.graph.get(), stream_), "the decode graph");
}

size_t PassGraphs::nodes_of(const std::function<void()>& work) const {
  size_t nodes = 0;
  check(cudaGraphGetNodes(capture(work).get(), nullptr, &nodes), "the launches of attention");
  return nodes;
}

PassGraphs::CapturedGraph PassGraphs::capture(const std::function<void()>& work) const {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "the decode graph");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "the decode graph");
  return CapturedGraph(graph);
}

void PassGraphs::forget(const DeviceCache& cache) {
  std::erase_if(passes_, [&](const TokenPass& p) {
    return std::ranges::find(p.caches, &cache) != p.caches.end();
  });
}

}  // namespace pith::cuda
