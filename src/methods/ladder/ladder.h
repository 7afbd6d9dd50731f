#pragma once
// Rows that change their codec with age: the newest of a head's body in one codec, older ones in
// another. Every kStep rows the oldest of the newer ones are decoded and coded once more, which is
// the only recoding in Pith: a row is moved once in its life.

#include "compress/registry.h"

namespace pith {

CodecRow ladder_row();

/// The codec that parameter `name`, "old" or "new", asks for. Throws kInvalidArgument.
PolicyPart ladder_step(const Parameters& parameters, const std::string& name);

}  // namespace pith
