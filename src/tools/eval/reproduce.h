#pragma once
// The tables and figures of the papers that Pith's methods come from, measured on a model and a
// text of the user's, ours beside the paper's numbers. A paper's numbers are of another model and
// often of another metric: what can be compared is the direction, which each table's claims check.
// Cost: minutes on a small model; `quick` takes shorter texts, fewer settings and seeds.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/session.h"

namespace pith {

/// A number or none. Of predictions with the standard error of `Estimate`, of others with their
/// deviation over seeds, 0 for one run.
struct Cell {
  std::optional<double> value;
  double deviation = 0, error = 0;
};

struct Column {
  std::string name;
  int digits = 3;      ///< behind the point
  bool paper = false;  ///< the paper's own number
};

struct TableRow {
  std::string name;    ///< the method or setting
  std::string policy;  ///< what ran, "" if that is in the name
  std::vector<Cell> cells;
};

/// Whose form of a method ran: a verdict on one form says nothing of another.
enum class Form {
  kNone,         ///< no form of the paper's method
  kPaper,        ///< as the paper has it
  kGuarantee,    ///< ours, with the paper's guarantee
  kNoGuarantee,  ///< ours, without it
  kHeavy,        ///< ours, with rows kept for their attention mass: the paper has none
  kUntrained,    ///< the paper's code over a dictionary that was not trained
};
std::string_view form_name(Form form);

/// A claim of the paper about its table, and whether ours agrees.
struct Claim {
  std::string paper, ours;
  std::optional<bool> holds;  ///< none: open, the exact cache fails as well or nothing was trained
  Form form = Form::kNone;
  std::string policy = {};  ///< on which the verdict rests, "" for several
};

struct ReproducedTable {
  std::string id, title;
  std::string source;    ///< the paper's table, with its model and metric
  std::string protocol;  ///< what we ran
  std::vector<Column> columns;
  std::vector<TableRow> rows;
  std::vector<Claim> claims;
};

/// Hears of work done in a stage, from any thread but one at a time; false = stop.
using StageProgress = std::function<bool(const std::string& stage, size_t done, size_t total)>;

struct ReproduceOptions {
  std::shared_ptr<const Model> model;
  std::vector<int32_t> text;  ///< tokens
  StandaloneOptions session;  ///< device, threads, seed, chunk, memory and instruction set
  int runs_at_once = 0;       ///< sessions side by side, each on one thread; 0 = all cores
  size_t seeds = 3;           ///< of randomised policies
  bool quick = false;
  std::string dictionary;         ///< of csr, trained for the model; "" = the text's own rows
  std::vector<std::string> only;  ///< tables to make; empty = all
  StageProgress progress;
  /// Receives each table when it is finished.
  std::function<void(const ReproducedTable&)> finished;
};

/// Thrown when `progress` asks to stop.
struct ReproduceCancelled {};

struct Reproduction {
  std::string_view name, summary;
  std::vector<std::string_view> tables;  ///< ids, in order
  size_t tokens, quick_tokens;           ///< that the text must have
  void (*run)(const ReproduceOptions& options);
};
/// One a paper.
std::span<const Reproduction> reproductions();
/// Throws kInvalidArgument for names that are none.
const Reproduction& find_reproduction(std::string_view name);
/// Whether `only` is empty or names the table.
bool wants_table(const ReproduceOptions& options, std::string_view table);
/// Throws kInvalidArgument if one of `only` is no table of the paper.
void check_tables(const Reproduction& paper, std::span<const std::string> only);

}  // namespace pith
