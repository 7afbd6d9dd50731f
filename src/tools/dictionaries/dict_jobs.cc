#include "tools/dictionaries/dict_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/input_file.h"
#include "core/safetensors.h"
#include "pith/error.h"

namespace pith {
namespace {

using Json = nlohmann::json;

struct Cancelled {};

std::string name_of(const DictJob& job) {
  return fmt::format("{}.layers.{}-{}.head.{}", job.side == Side::kKeys ? "keys" : "values",
                     job.layers.first, job.layers.last, job.head);
}

}  // namespace

DictJobs::DictJobs(const DictionaryModel& model, const DictSettings& settings)
    : model_(model), settings_(settings) {}

void DictJobs::plan(const std::vector<LayerKv>& kv) {
  kv_ = &kv;
  for (Side side : {Side::kKeys, Side::kValues}) {
    std::vector<std::vector<float>> rows;
    for (const LayerKv& layer : kv) rows.push_back(side == Side::kKeys ? layer.keys : layer.values);
    for (const LayerGroup& group : group_layers(rows, model_.head_dim, settings_.grouping))
      for (size_t head = 0; head < (settings_.share_heads ? 1 : model_.kv_heads); ++head)
        jobs_.push_back({side, group, head, std::nullopt});
  }
}

// Held-out tokens come last: the last tokens of every layer.
std::vector<float> DictJobs::rows_of(const DictJob& job, size_t* held_out) const {
  const size_t heads = model_.kv_heads, dim = model_.head_dim;
  const size_t tokens = kv_->front().keys.size() / (heads * dim);
  const auto held = static_cast<size_t>(static_cast<double>(tokens) * settings_.held_out);
  std::vector<float> rows;
  const auto add = [&](size_t first, size_t last) {
    for (size_t l = job.layers.first; l <= job.layers.last; ++l) {
      const auto& x = job.side == Side::kKeys ? (*kv_)[l].keys : (*kv_)[l].values;
      for (size_t t = first; t < last; ++t)
        for (size_t h = 0; h < heads; ++h)
          if (settings_.share_heads || h == job.head) {
            const auto* row = x.data() + (t * heads + h) * dim;
            rows.insert(rows.end(), row, row + dim);
          }
    }
  };
  add(0, tokens - held);
  const size_t learnt = rows.size();
  add(tokens - held, tokens);
  *held_out = (rows.size() - learnt) / (dim / of(job.side).chunks);
  return rows;
}

bool DictJobs::run(const Context& context, const std::string& checkpoint,
                   const std::string& identity, const Progress& progress) {
  read_checkpoint(checkpoint, identity);
  const size_t epochs =
      settings_.train.method == TrainOptions::Method::kNeural ? settings_.train.epochs : 0;
  std::mutex mutex;  // of progress, results and the checkpoint
  std::atomic<bool> stop{false};
  size_t done = resumed_ * (epochs + 1);
  const auto advance = [&] {
    const std::scoped_lock lock(mutex);
    ++done;
    if (progress && !progress(done, jobs_.size() * (epochs + 1))) stop = true;
    return !stop.load();
  };
  try {
    context.pool.parallel_for(jobs_.size(), [&](size_t i, int) {
      DictJob& job = jobs_[i];
      if (job.result) return;
      if (stop) throw Cancelled{};
      TrainOptions options = settings_.train;
      options.code.pairs = of(job.side).pairs;
      options.seed += i;
      size_t held_out = 0;
      const std::vector<float> x = rows_of(job, &held_out);
      const size_t dim = model_.head_dim / of(job.side).chunks;
      TrainResult result = train_atoms(context.kernels, context.memory,
                                       {x.data(), x.size() / dim, dim, held_out}, options, advance);
      if (result.atoms.empty()) throw Cancelled{};
      {
        const std::scoped_lock lock(mutex);
        job.result = std::move(result);
        write_checkpoint(checkpoint, identity);
      }
      if (!advance()) throw Cancelled{};
    });
  } catch (const Cancelled&) {
    return false;
  }
  return true;
}

void DictJobs::write_checkpoint(const std::string& path, const std::string& identity) const {
  std::vector<TensorBytes> tensors;
  std::map<std::string, std::string> metadata = {{"identity", identity}};
  for (const DictJob& job : jobs_) {
    if (!job.result) continue;
    const size_t dim = model_.head_dim / of(job.side).chunks;
    tensors.push_back({{name_of(job), TensorType::kF16, {job.result->atoms.size() / dim, dim}},
                       job.result->atoms.data()});
    metadata[name_of(job)] =
        Json{{"losses", job.result->losses}, {"power", job.result->power}}.dump();
  }
  write_safetensors(path, std::move(tensors), metadata);
}

void DictJobs::read_checkpoint(const std::string& path, const std::string& identity) {
  if (!is_there(path)) return;
  const SafeTensors file = SafeTensors::open(path);
  const auto named = file.metadata().find("identity");
  if (named == file.metadata().end() || named->second != identity)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is of a training with another model, text or other settings; "
                            "delete it, or name another --out",
                            path));
  for (DictJob& job : jobs_) {
    const Tensor* t = file.find(name_of(job));
    if (!t) continue;
    TrainResult result;
    result.atoms.resize(t->count());
    std::memcpy(result.atoms.data(), t->data, t->bytes);
    const Json about = Json::parse(file.metadata().at(name_of(job)));
    result.losses = about.at("losses").get<std::vector<double>>();
    result.power = about.at("power").get<double>();
    job.result = std::move(result);
    ++resumed_;
  }
}

DictionarySides DictJobs::sides() const {
  DictionarySides sides;
  for (const DictJob& job : jobs_) {
    auto& groups = job.side == Side::kKeys ? sides.keys : sides.values;
    if (job.head == 0) {
      GroupAtoms g;
      g.layers = job.layers;
      g.heads = settings_.share_heads ? 1 : model_.kv_heads;
      g.dim = model_.head_dim / of(job.side).chunks;
      g.count = settings_.train.atoms;
      groups.push_back(std::move(g));
    }
    auto& atoms = groups.back().atoms;
    atoms.insert(atoms.end(), job.result->atoms.begin(), job.result->atoms.end());
  }
  return sides;
}

}  // namespace pith
