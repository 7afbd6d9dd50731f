#pragma once
// The types of a model's tensors, for `pith inspect`.

#include <map>
#include <string>

#include "pith/model.h"

namespace pith {

/// Bytes of the file's tensors by the name of their type.
std::map<std::string, size_t> bytes_by_type(const Model& model);

}  // namespace pith
