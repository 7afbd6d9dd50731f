#pragma once
// A reproduced table as text, as Markdown and as a record.

#include <string>

#include "tools/eval/records.h"
#include "tools/eval/reproduce.h"

namespace pith {

/// "12.34 ±0.56", with the error or the deviation; "12.34", or "" for none.
std::string cell_text(const Cell& cell, const Column& column);
/// Title, source, table, claims and protocol, aligned for a terminal; policies are left out.
std::string table_text(const ReproducedTable& table);
/// The same as a section of Markdown, with the policies.
std::string table_markdown(const ReproducedTable& table);
Record table_record(const ReproducedTable& table);

}  // namespace pith
