#pragma once
// The inside of a cache, for the files that carry it out.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/head_group.h"
#include "cache/kv_cache.h"
#include "cache/stream_notes.h"
#include "pith/error.h"
#include "probe/host_probe.h"

namespace pith {

struct CacheLayer {
  std::vector<HeadGroup> groups;
  std::optional<HostProbe> probe;
  size_t tokens = 0;
};

/// A step under way: what its call points to.
struct OpenStep {
  explicit OpenStep(MemoryCounter& memory)
      : unwanted(memory, MemoryKind::kScratch), mass(memory, MemoryKind::kScratch) {}
  AttendCall call = {};
  std::vector<size_t> asked = {};  // [G]
  Array<float> unwanted;           // [T, H, D]
  Array<float> mass;               // [G, T]
  bool attends = true, wanted = true;
};

struct KvCache::Impl {
  Impl(const Context& c, ResolvedPolicy p, const LayerRopes& r)
      : context(c),
        policy(std::make_shared<const ResolvedPolicy>(std::move(p))),
        shape(policy->shape()),
        ropes(r) {}
  Impl(const Impl& o)
      : context(o.context),
        policy(o.policy),
        shape(o.shape),
        ropes(o.ropes),
        layers(o.layers),
        notes(o.notes) {}

  Context context;
  std::shared_ptr<const ResolvedPolicy> policy;
  CacheShape shape;
  LayerRopes ropes;
  std::vector<CacheLayer> layers;  // [L]
  StreamNotes notes;

  /// For what lasts a step: such memory is not under the session's own limit.
  Context step_context() const { return {context.pool, context.memory.beside(), context.kernels}; }
  /// Tokens that came, to each layer or to the only one.
  size_t seen() const {
    size_t most = 0;
    for (const CacheLayer& layer : layers) most = std::max(most, layer.tokens);
    return most;
  }
  CacheLayer& layer(int l) {
    if (l < 0 || l >= shape.layers)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("layer {} of a cache with {} layers", l, shape.layers));
    return layers[static_cast<size_t>(l)];
  }
  /// The group that holds a KV head, and which of its heads that is.
  std::pair<HeadGroup*, size_t> group_of(int l, int head);
  /// Shows a call's queries, of `all` that come, to the selectors, and sets from how many of its
  /// last ones they want mass. The call then names `asked` [G].
  void begin_step(int l, AttendCall& call, size_t all, std::vector<size_t>& asked);
  /// A call with all that it attends to. The queries stand behind what the layer has seen and
  /// call.before tokens more.
  class Attending {
   public:
    Attending(Impl& cache, int l, const AttendCall& given);
    Attending(const Attending&) = delete;
    Attending& operator=(const Attending&) = delete;

    Context step;
    AttendCall call;

   private:
    std::vector<std::vector<Span>> lists_;     // [G]
    std::vector<std::span<const Span>> seen_;  // [G]
    Array<float> scaled_;                      // [T, H, D]
  };
  void attend(int l, const AttendCall& call);
  /// Begins a step, and ends it behind what attends.
  void open(int l, OpenStep& step, float* out, const LayerRows& rows, const float* q);
  void close(int l, const OpenStep& step, const LayerRows& rows);
  /// The rows of each KV head: [G] lists.
  std::vector<std::vector<Span>> spans(CacheLayer& layer) const;
  /// Compares the answer of a step of one token with the sampled rows.
  void probe(int l, const AttendCall& call);
  void append(int l, const LayerRows& rows, bool gathers = false);
};

}  // namespace pith
