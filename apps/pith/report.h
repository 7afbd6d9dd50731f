#pragma once
// How results are said: the ledger and a run's statistics, as text and as JSON.

#include <nlohmann/json.hpp>
#include <string>

#include "pith/generate.h"
#include "pith/session.h"

namespace pith::cli {

using Json = nlohmann::ordered_json;

Json to_json(const Ledger& ledger);
/// "1.05 MB: 1.03 MB payload, 18.4 kB metadata; 4.0 bits per number".
std::string describe_bytes(const Ledger& ledger);
/// Rows kept of rows seen, as "12.5%".
/// Kept rows of one KV head, which is what budgets are given in: their mean where heads differ.
std::string rows_per_head(const Ledger& ledger);
std::string share_kept(const Ledger& ledger);
/// Tokens that per cent in the policy are of: " (per cent are of 1136 tokens)"; empty without any.
std::string percent_note(const Session& session);
/// For a policy that is there to drop rows and has dropped none: that, and why. Else empty.
std::string nothing_dropped(const Session& session);
/// The error probe's estimates, layer by layer; and in a line: the largest and their root mean
/// square. Not for empty lists.
Json to_json(const std::vector<AttentionError>& errors);
std::string describe_errors(const std::vector<AttentionError>& errors);
/// Model, policy, seed, threads and instruction set of a session.
Json describe_session(const Session& session);

/// One answer's numbers with those of the session.
struct RunStatistics {
  const GenerateResult& result;
  const Session& session;
  uint64_t sampling_seed = 0;
};
Json to_json(const RunStatistics& statistics);
/// Some aligned lines for standard error.
std::string to_text(const RunStatistics& statistics);

/// Prints the object on standard output.
void print_json(const Json& json);

}  // namespace pith::cli
