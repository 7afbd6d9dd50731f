#pragma once
// Passes of tokens as graphs that are replayed.

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <type_traits>
#include <vector>

#include "attend/cuda/decode_groups.h"
#include "cache/cuda/device_cache.h"

namespace pith::cuda {

struct GraphEnd {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};

/// A pass of tokens that has come before. Two passes are one where their kernels get the same
/// parameters: then who is in it is said by descriptors alone (docs/decisions/0180).
struct TokenPass {
  std::vector<size_t> form;  // how many tokens, and which RoPE each layer has
  std::vector<std::vector<DecodeLaunch>> attention;  // [L]; none: its kernels are whose it is
  std::vector<const DeviceCache*> caches;            // then whose it is, in their order
  std::vector<int> blocks;                           // and those of each one's attention
  bool ran = false;                                  // kernel by kernel
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphEnd> graph = {};

  bool same_as(const TokenPass& o) const {
    return form == o.form && caches == o.caches && attention == o.attention;
  }
};

class PassGraphs {
 public:
  explicit PassGraphs(cudaStream_t stream) : stream_(stream) {}

  /// The one that is the same as `pass`, now the latest; a new one if none is known.
  TokenPass& find(TokenPass pass);
  /// Launches the pass's graph, which `work` makes if there is none: it gives its kernels to the
  /// stream. They are loaded: a capture may not load them.
  void launch(TokenPass& pass, const std::function<void()>& work) const;
  /// How many nodes a graph of `work` has.
  size_t nodes_of(const std::function<void()>& work) const;
  /// Drops passes whose kernels are those of a few caches, this one among them.
  void forget(const DeviceCache& cache);
  void clear() { passes_.clear(); }

 private:
  struct CapturedEnd {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  };
  using CapturedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, CapturedEnd>;
  CapturedGraph capture(const std::function<void()>& work) const;

  cudaStream_t stream_;
  std::list<TokenPass> passes_;  // the latest last
};

}  // namespace pith::cuda
