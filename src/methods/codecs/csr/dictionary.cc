#include "methods/codecs/csr/dictionary.h"

#include <fmt/format.h>

#include <charconv>

#include "core/safetensors.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr const char* kFormat = "pith csr dictionary 1";

std::string tensor_name(const char* side, const LayerGroup& g) {
  return fmt::format("{}.layers.{}-{}", side, g.first, g.last);
}

[[noreturn]] void corrupt(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}", path, what));
}

}  // namespace

void write_dictionary(const std::filesystem::path& path, const DictionaryModel& model,
                      const DictionarySides& sides,
                      const std::map<std::string, std::string>& settings) {
  std::map<std::string, std::string> metadata = settings;
  metadata["format"] = kFormat;
  metadata["model"] = model.name;
  metadata["fingerprint"] = fmt::format("{:016x}", model.fingerprint);
  metadata["layers"] = std::to_string(model.layers);
  metadata["kv_heads"] = std::to_string(model.kv_heads);
  metadata["head_dim"] = std::to_string(model.head_dim);
  std::vector<TensorBytes> tensors;
  for (const auto& [name, groups] : {std::pair{"keys", &sides.keys}, {"values", &sides.values}})
    for (const GroupAtoms& g : *groups)
      tensors.push_back({{tensor_name(name, g.layers), TensorType::kF16, {g.heads, g.count, g.dim}},
                         g.atoms.data()});
  write_safetensors(path, std::move(tensors), metadata);
}

DictionaryFile DictionaryFile::open(const std::filesystem::path& path) {
  DictionaryFile d;
  d.path_ = path.string();
  const auto file = std::make_shared<const SafeTensors>(SafeTensors::open(path));
  d.owner_ = file;
  d.metadata_ = file->metadata();
  const auto text = [&](const char* key) -> const std::string& {
    const auto it = d.metadata_.find(key);
    if (it == d.metadata_.end())
      corrupt(d.path_,
              fmt::format("no '{}' in its metadata; 'pith train-dict' makes dictionaries", key));
    return it->second;
  };
  const auto number = [&](const char* key, int base) {
    const std::string& s = text(key);
    uint64_t n = 0;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n, base);
    if (error != std::errc() || end != s.data() + s.size() || n == 0)
      corrupt(d.path_, fmt::format("'{}' is '{}'", key, s));
    return n;
  };
  if (text("format") != kFormat)
    corrupt(d.path_, fmt::format("its format is '{}', not '{}'", text("format"), kFormat));
  d.model_ = {text("model"), number("fingerprint", 16), number("layers", 10),
              number("kv_heads", 10), number("head_dim", 10)};
  d.read_side("keys", Side::kKeys);
  d.read_side("values", Side::kValues);
  return d;
}

void DictionaryFile::read_side(const std::string& name, Side side) {
  const auto& tensors = static_cast<const SafeTensors*>(owner_.get())->tensors();
  size_t& dim = side == Side::kKeys ? key_dim_ : value_dim_;
  for (size_t layer = 0; layer < model_.layers;) {
    // The group that begins here: only its name says where it ends.
    const std::string prefix = fmt::format("{}.layers.{}-", name, layer);
    const auto it = tensors.lower_bound(prefix);
    if (it == tensors.end() || !it->first.starts_with(prefix))
      corrupt(path_, fmt::format("no dictionary of the {} of layer {}", name, layer));
    const Tensor& t = it->second;
    size_t last = 0;
    const char* end = it->first.data() + it->first.size();
    const auto parsed = std::from_chars(it->first.data() + prefix.size(), end, last);
    const bool named = parsed.ec == std::errc() && parsed.ptr == end;
    const bool shaped = t.type == TensorType::kF16 && t.shape.size() == 3 &&
                        (t.shape[0] == 1 || t.shape[0] == model_.kv_heads) && t.shape[1] > 0 &&
                        t.shape[1] <= 65536 && t.shape[2] > 0 &&
                        model_.head_dim % t.shape[2] == 0 && (layer == 0 || t.shape[2] == dim);
    if (!named || !shaped || last < layer || last >= model_.layers)
      corrupt(path_, fmt::format("tensor '{}' of shape {} does not fit the model", t.name,
                                 t.shape_text()));
    dim = t.shape[2];
    groups(side).push_back({{layer, last},
                            t.shape[0],
                            t.shape[1],
                            reinterpret_cast<const uint16_t*>(t.data),
                            t.bytes});
    layer = last + 1;
  }
}

size_t DictionaryFile::chunks(Side side) const {
  return model_.head_dim / (side == Side::kKeys ? key_dim_ : value_dim_);
}

const DictionaryFile::Group& DictionaryFile::group(Side side, size_t layer) const {
  for (const Group& g : side == Side::kKeys ? keys_ : values_)
    if (layer <= g.layers.last) return g;
  throw Error(ErrorCode::kInternal, fmt::format("{}: no layer {}", path_, layer));
}

OfflineAtoms DictionaryFile::atoms(const RowsRequest& request) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the dictionary {} was trained for {}, {}; train one with 'pith "
                            "train-dict', or use online atoms alone",
                            path_, model_.name, why));
  };
  if (request.model == 0) refuse("and this cache does not know its model");
  if (request.model != model_.fingerprint) refuse("not for this model");
  if (request.dim != model_.head_dim || request.layer >= model_.layers ||
      request.head >= model_.kv_heads)
    refuse("whose shape is another");
  const Group& g = group(request.side, request.layer);
  const size_t d = request.side == Side::kKeys ? key_dim_ : value_dim_;
  const size_t head = g.heads == 1 ? 0 : request.head;
  return {g.atoms + head * g.count * d, g.count, d, owner_};
}

size_t DictionaryFile::layer_bytes(Side side, size_t layer) const {
  const Group& g = group(side, layer);
  const size_t sharers = g.layers.last - g.layers.first + 1;
  return g.bytes / sharers + (layer == g.layers.first ? g.bytes % sharers : 0);
}

}  // namespace pith
