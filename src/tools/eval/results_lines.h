#pragma once
// The other forms of results: rows as JSON lines, the object of `pith probe --json`, and the table
// of `pith bench select --csv`.

#include "tools/eval/results.h"

namespace pith {

/// The same. Throws Record::exception for what is no object, and for a model or a version that is
/// no text.
const Record& checked_setting(const Record& setting);
/// Adds what results_to_lines wrote. Throws Record::exception or Error for other lines.
void add_result_line(const Record& line, Results& results);
/// Throws Record::exception if a field is missing.
ProbeGroup probe_from_json(const Record& json);
/// Throws kCorrupt for a line without the columns of the head.
void add_selector_costs(const std::string& csv, std::vector<SelectorCost>& costs);

}  // namespace pith
