#pragma once
// Queries, keys and values of a model on a text, as bench/dump_heads.py writes them: int64 layers,
// query heads, KV heads, head_dim, tokens; then for each layer f32 q [T, H, D], k [T, G, D],
// v [T, G, D], after RoPE.

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <vector>

#include "pith/error.h"

namespace pith {

struct LayerDump {
  std::vector<float> q, k, v;
};

struct Dump {
  size_t query_heads = 0, kv_heads = 0, dim = 0, tokens = 0;
  std::vector<LayerDump> layers;
};

inline Dump read_dump(const char* path) {
  std::ifstream in(path, std::ios::binary);
  int64_t header[5] = {};
  in.read(reinterpret_cast<char*>(header), sizeof header);
  if (!in) throw Error(ErrorCode::kIo, fmt::format("{}: no dump of heads", path));
  Dump d{static_cast<size_t>(header[1]),
         static_cast<size_t>(header[2]),
         static_cast<size_t>(header[3]),
         static_cast<size_t>(header[4]),
         {}};
  d.layers.resize(static_cast<size_t>(header[0]));
  for (LayerDump& l : d.layers) {
    l.q.resize(d.tokens * d.query_heads * d.dim);
    l.k.resize(d.tokens * d.kv_heads * d.dim);
    l.v.resize(l.k.size());
    for (std::vector<float>* x : {&l.q, &l.k, &l.v})
      in.read(reinterpret_cast<char*>(x->data()), static_cast<std::streamsize>(x->size() * 4));
  }
  if (!in) throw Error(ErrorCode::kIo, fmt::format("{}: the dump is cut short", path));
  return d;
}

}  // namespace pith
