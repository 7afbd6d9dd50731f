#pragma once
// The dictionaries of a model, one after the other: which rows each is trained on, what is finished
// already, and the file at the end.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/context.h"
#include "methods/codecs/csr/dictionary.h"
#include "pith/model.h"
#include "tools/dictionaries/layer_groups.h"
#include "tools/dictionaries/train.h"

namespace pith {

/// Keys and values of one layer, in the order of the tokens.
struct LayerKv {
  std::vector<float> keys, values;  // [T, G, D], keys before RoPE
};

/// How one side is cut and coded while training.
struct SideSettings {
  size_t pairs = 8;   ///< of a chunk
  size_t chunks = 1;  ///< parts of a row
};

struct DictSettings {
  TrainOptions train;  ///< but for its code, which is a side's
  SideSettings keys{8, 1}, values{4, 2};
  GroupingOptions grouping;
  bool share_heads = false;  ///< one dictionary for all KV heads of a group
  double held_out = 0.1;     ///< share of the tokens, the last, for validation alone
};

/// One dictionary.
struct DictJob {
  Side side = Side::kKeys;
  LayerGroup layers;
  size_t head = 0;  ///< 0 if all heads share it
  std::optional<TrainResult> result;
};

class DictJobs {
 public:
  DictJobs(const DictionaryModel& model, const DictSettings& settings);

  /// Finds groups of layers. `kv` must outlive this.
  void plan(const std::vector<LayerKv>& kv);
  /// Trains what has no result yet and writes `checkpoint` after each. `identity` names settings
  /// and text: another checkpoint is refused (kInvalidArgument). False if `progress` asked to stop.
  bool run(const Context& context, const std::string& checkpoint, const std::string& identity,
           const Progress& progress);
  const std::vector<DictJob>& jobs() const { return jobs_; }
  DictionarySides sides() const;
  size_t resumed() const { return resumed_; }

 private:
  const SideSettings& of(Side side) const {
    return side == Side::kKeys ? settings_.keys : settings_.values;
  }
  std::vector<float> rows_of(const DictJob& job, size_t* held_out) const;
  void read_checkpoint(const std::string& path, const std::string& identity);
  void write_checkpoint(const std::string& path, const std::string& identity) const;

  DictionaryModel model_;
  DictSettings settings_;
  const std::vector<LayerKv>* kv_ = nullptr;
  std::vector<DictJob> jobs_;
  size_t resumed_ = 0;
};

}  // namespace pith
