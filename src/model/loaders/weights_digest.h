#pragma once
// Which model this is: a digest of its weights and of what else shapes its answers.

#include "core/digest.h"
#include "model/loaders/model_tensors.h"
#include "model/loaders/weights.h"

namespace pith {

/// Bytes of a tensor that a digest covers: all of a tensor of up to kDigestBlocks blocks, else as
/// many blocks at equal distances, the first and the last among them. Training changes all
/// numbers of a tensor, so the bytes between would add nothing. Reading a whole model of 8B in 16
/// bits takes seconds, its blocks a tenth of one.
inline constexpr size_t kDigestBlock = 4096, kDigestBlocks = 64;

/// Of every tensor's name, type and shape, and its bytes as above.
Digest digest_of_tensors(const ModelTensors& tensors);

/// Of the tensors, and of what the forward pass takes from the config: scales, RoPE, windows. Made
/// once a model, when it is first asked for.
const Digest& digest_of_model(const Model::Weights& weights);

}  // namespace pith
