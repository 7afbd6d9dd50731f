#pragma once
// The fields of config.json about RoPE: one base or one a kind of layer, scaling, channels that
// stand still.

#include "model/loaders/config.h"
#include "model/loaders/config_fields.h"

namespace pith {

/// Needs architecture and shapes in `out`. Throws as read_config does.
void read_rope(const Fields& fields, ConfigFile& out);

}  // namespace pith
