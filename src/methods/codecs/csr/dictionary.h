#pragma once
// The offline dictionaries of one model in one safetensors file: a tensor for each group of layers
// and side, [heads or 1, atoms, d] f16, and metadata that name the model, the groups and the
// settings of the training. Atoms stay where the file is mapped.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "methods/codecs/csr/csr_rows.h"
#include "rows/cpu/coded_rows.h"

namespace pith {

/// The purpose of a file.
struct DictionaryModel {
  std::string name;  ///< for people
  uint64_t fingerprint = 0;
  size_t layers = 0, kv_heads = 0, head_dim = 0;
};

/// Layers [first, last] share a dictionary.
struct LayerGroup {
  size_t first = 0, last = 0;
};

/// The atoms of one side and group of layers, of each KV head or of all together.
struct GroupAtoms {
  LayerGroup layers;
  size_t heads = 1;             ///< KV heads, or 1: shared by all
  size_t count = 0, dim = 0;    // N, d
  std::vector<uint16_t> atoms;  // [heads, N, d] f16
};

struct DictionarySides {
  std::vector<GroupAtoms> keys, values;
};

/// `settings` go into the metadata as they are. Throws kIo.
void write_dictionary(const std::filesystem::path& path, const DictionaryModel& model,
                      const DictionarySides& sides,
                      const std::map<std::string, std::string>& settings);

class DictionaryFile {
 public:
  /// Throws kNotFound, kIo or kCorrupt.
  static DictionaryFile open(const std::filesystem::path& path);

  const DictionaryModel& model() const { return model_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Parts that a row is cut into: head_dim / d.
  size_t chunks(Side side) const;
  /// Throws kInvalidArgument if the request is for another model.
  OfflineAtoms atoms(const RowsRequest& request) const;
  /// Bytes that a layer answers for: those of its group divided by the layers that share them, so
  /// that a whole cache counts each byte once.
  size_t layer_bytes(Side side, size_t layer) const;

 private:
  struct Group {
    LayerGroup layers;
    size_t heads = 0, count = 0;
    const uint16_t* atoms = nullptr;  // [heads, count, d]
    size_t bytes = 0;
  };
  const Group& group(Side side, size_t layer) const;
  std::vector<Group>& groups(Side side) { return side == Side::kKeys ? keys_ : values_; }
  void read_side(const std::string& name, Side side);

  std::string path_;
  DictionaryModel model_;
  std::map<std::string, std::string> metadata_;
  std::vector<Group> keys_, values_;  // ascending
  size_t key_dim_ = 0, value_dim_ = 0;
  std::shared_ptr<const void> owner_;
};

}  // namespace pith
