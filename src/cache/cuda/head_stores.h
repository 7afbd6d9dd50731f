#pragma once
// The stores of KV heads side by side under one rule: where their rows lie (ZoneTable in
// layer_plan.h says which zone in which store), and how many of each kind. Steps are carried out by
// HeadPasses, queries are answered by HeadAttention, state and reports are head_state.h's.
//
// The run is sink | body | window, dense; a row that leaves the window counts as the body's where
// it lies. At a selection the rows that stay move to the front of those that were selected from,
// and all later ones follow. Exact attention is the case in which nothing is ever selected. Where
// rows flow the run is the window alone.
//
// Codes are the body's first rows. Rows that are selected from are packed 32 at a time, and all
// before a selection: fewer than 32 of the body's rows are dense. A selection sees them as the
// codes give them back, and rows that stay move as codes, so that no row is ever coded twice. Their
// weights are one array, the same for all heads, written after selections. Settled codes are no
// part of the run any more.
//
// Heavy rows (methods/heavy.h) lie between the body and the window. At a split the lightest move to
// their front and count as the body's, or go into a body that carries out the steps that follow.

#include <algorithm>
#include <memory>

#include "cache/cuda/head_queries.h"
#include "cache/cuda/layer_plan.h"
#include "cache/cuda/protected_store.h"
#include "cache/cuda/ragged_store.h"
#include "cache/cuda/row_sides.h"
#include "core/copied.h"
#include "plan/row_run.h"
#include "rows/cuda/coded_store.h"
#include "rows/cuda/dense_store.h"

namespace pith::cuda {

struct HeadStores {
  HeadStores(const LayerPlan& layer, const LayerSite& site);

  LayerPlan layer;
  LayerSite site;
  Plan plan;
  RowRun run;  ///< the bounds between zones of the run
  LateSelections late;
  std::shared_ptr<const DeviceChooser> chooser;
  Copied<CodedStore> codes;  ///< of rows of the run; null: there all are dense
  Copied<BodyStore> body;    ///< of rows that flow or leave the heavy ones, or null
  DenseStore sink;           ///< where it lies apart
  DenseStore rows;           ///< the run's
  Slab turned;               // [G, sink, D] the sink's keys, where positions are the cache's
  HeadQueries queries;
  RowSides sides;  ///< positions: of the body's first rows; mass: of the run's and packed ones
  ProtectedStore protected_rows;
  Copied<RaggedStore> ragged;  ///< null: heads have as many rows

  const ZoneTable& zones() const { return layer.zones; }
  size_t heads() const { return site.heads; }
  size_t query_heads() const { return site.query_heads; }
  size_t tokens() const { return plan.state().tokens; }
  /// Tokens that are not protected; and how many of these the sink has.
  size_t open() const { return plan.state().open; }
  size_t in_sink() const { return plan.state().at(Zone::kSink); }

  size_t coded() const { return codes ? codes->rows() : 0; }
  /// Of the body's rows in the run its first, in codes; and those behind the run's first `rows`.
  size_t packed() const { return zones().packs() ? coded() : 0; }
  size_t packed_behind(size_t first_rows) const {
    return packed() - std::min(packed(), first_rows);
  }
  /// The body's first rows, in codes for good.
  size_t settled() const { return coded() - packed(); }
  /// The body's first rows that heads have on average in the ragged store.
  size_t shared() const { return ragged ? ragged->rows() / site.heads : 0; }
  size_t in_body() const { return run.body - settled() - shared(); }
  /// Rows between sink and window, but for shared ones; packed ones are the first of them.
  size_t between() const { return run.rows() - shared(); }
  /// Rows between the sink and the end, but for settled ones.
  size_t unsettled() const { return packed() + sink.rows() + rows.rows() - in_sink(); }
  /// Of the body's rows in the run the first, whose positions are stored: those selected from, and
  /// those that were split.
  size_t known() const { return sides.named() - settled(); }
  RowSides::Held beside_rows() const {
    return {rows.rows() + packed(), chooser->weighs_rows() ? run.selected : 0};
  }

  /// Whether codes have weights one by one; and the one that they have otherwise.
  bool weighs_codes() const { return zones().packs() && chooser->weights() > 0; }
  float coded_log_weight() const { return settled() > 0 ? log_weight(run.weighted.front()) : 0; }
  float log_weight(const RowRun::Weighted& of) const;
  /// The weights of codes follow from counts, but for those of rows that are weighed one by one.
  void write_weights() const;

  /// Where rows flow, what the window may need room for: those that a body makes its tables of wait
  /// in it.
  DenseStoreShape run_shape() const;
  /// Room for so many rows in the run, and beside them; whether there is for one.
  void reserve(size_t count);
  bool has_room() const;
  /// Gives back the room that a long chunk, or a prompt, needed in the run.
  void shrink();
  void make_sides(size_t capacity);
  void protect(const ProtectedRows& all);
  /// Tells a body that rows flow into which of them the next query does not see.
  void hide();
  size_t layers_together() const { return body ? body->layers_together() : 1; }

 private:
  size_t run_needs(size_t count) const;
  size_t side_needs(size_t count) const { return coded() + rows.rows() + count; }
};

}  // namespace pith::cuda
