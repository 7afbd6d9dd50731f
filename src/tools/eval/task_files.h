#pragma once
// Samples from local JSON-lines files in the formats that benchmarks publish:
//   ruler     {"input", "outputs"}: the question is what follows the last line break but one
//   (RULER's
//             templates end with the question on its own line)
//   longbench {"input", "context", "answers", "all_classes", "dataset"}: context, then input; the
//             metric is the data set's
//   math500   {"problem", "answer"}: boxed answer
//   litm-kv   {"ordered_kv_records", "key", "value"} of lost-in-the-middle
//   litm-qa   {"question", "answers", "ctxs": [{"title", "text"}]} of lost-in-the-middle

#include <filesystem>
#include <string_view>
#include <vector>

#include "tools/eval/tasks.h"

namespace pith {

/// The samples of a file, at most `count` (0 = all). Throws kNotFound, kCorrupt with the line, or
/// kInvalidArgument for an unknown format.
std::vector<Sample> read_samples(const std::filesystem::path& file, std::string_view format,
                                 size_t count);

}  // namespace pith
