#pragma once
// Express's times: what a token costs against the length, and what keeping the coreset costs of it.

#include "engine.h"
#include "tools/eval/reproduce.h"

namespace pith::cli {

/// Streams of random rows in the model's shape, by pith bench select's measurements. Throws
/// SelectCancelled.
ReproducedTable express_times(const ModelOptions& engine, const ReproduceOptions& options);

}  // namespace pith::cli
