#include "cache/head_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "pith/error.h"
#include "rows/cpu/dense.h"

namespace pith {
HeadGroup::HeadGroup(const Context& context, const CohortPolicy& policy, const Rope* rope,
                     HostTables* tables)
    : context_(context),
      heads_(policy.heads),
      dim_(policy.site.head_dim),
      codecs_{codec_of(tables, policy, Side::kKeys), codec_of(tables, policy, Side::kValues),
              std::make_shared<DenseCodec>(policy.keys.exact),
              std::make_shared<DenseCodec>(policy.values.exact)},
      selector_(policy.selector.parts(context, policy.site)),
      rope_(rope),
      cache_positions_(policy.selector.needs.cache_positions),
      forgets_(policy.site.sliding_window > 0) {
  if ((cache_positions_ || codecs_.key->pre_rope()) && !rope)
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("policy '{}' rotates keys or queries, which needs the model's RoPE; none "
                    "is known here (pith attend: give --rope-theta)",
                    to_string(policy.rule.selector)));
  plan_.emplace(selector_.rule, policy.schedule, kStagedRows);
  const size_t bound = selector_.rule->most_rows(kEndlessStream);
  make_stores(policy, rope, bound < kEndlessStream / 1024 ? bound : 0);
}

void HeadGroup::make_stores(const CohortPolicy& policy, const Rope* rope, size_t max_rows) {
  const bool mass = carries_mass();
  for (int head : heads_) {
    RowFormat format{codecs_.exact_key.get(),
                     codecs_.exact_value.get(),
                     rope,
                     dim_,
                     static_cast<uint32_t>(head),
                     plan_->shape().sink,
                     mass,
                     policy.site.seed,
                     policy.site.layer,
                     policy.model,
                     policy.site.group,
                     plan_->shape().sink};
    sinks_.emplace_back(context_, format);
    format.keys = codecs_.key.get();
    format.values = codecs_.value.get();
    format.max_rows = max_rows;
    bodies_.emplace_back(context_, format);
    windows_.emplace_back(context_, WindowFormat{policy.keys.exact, policy.values.exact, dim_,
                                                 plan_->shape().ring_capacity(), mass});
  }
}

HeadGroup::HeadGroup(const HeadGroup& other)
    : context_(other.context_),
      heads_(other.heads_),
      dim_(other.dim_),
      codecs_(other.codecs_),
      selector_(other.selector_.clone()),
      plan_(other.plan_),
      rope_(other.rope_),
      cache_positions_(other.cache_positions_),
      forgets_(other.forgets_),
      tokens_(other.tokens_),
      sinks_(other.sinks_),
      protected_(other.protected_),
      bodies_(other.bodies_),
      windows_(other.windows_) {}

size_t HeadGroup::begin_step(const QueryPart& part) {
  if (selector_.chooser) selector_.chooser->observe(bodies_, part.queries);
  for (HeadBody& body : bodies_) body.observe(part.queries);
  const MassRequest request = plan_->mass(part.all);
  if (request.fresh && part.before == 0)
    for (size_t h = 0; h < heads_.size(); ++h) {
      std::ranges::fill(sinks_[h].mass(), 0.0f);
      for (size_t i = 0; i < bodies_[h].stores(); ++i)
        std::ranges::fill(bodies_[h].store(i).mass(), 0.0f);
      windows_[h].clear_mass();
    }
  // Of all queries the last are asked: those of them that are in this part.
  const size_t asked = std::max(part.all - std::min(request.queries, part.all), part.before);
  const size_t end = part.before + part.queries.tokens;
  return end - std::min(asked, end);
}

bool HeadGroup::scales_queries(size_t before, size_t tokens) const {
  for (size_t t = 1; t <= tokens; ++t)
    if (selector_.rule->query_factor(static_cast<int64_t>(tokens_ + before + t)) != 1) return true;
  return false;
}

void HeadGroup::scale_queries(float* q, const AttendCall& call) const {
  const size_t query_heads = call.shape.query_heads, group = query_heads / call.shape.kv_heads;
  for (size_t t = 0; t < call.tokens; ++t) {
    const auto seen = static_cast<int64_t>(tokens_ + call.before + t + 1);
    const float factor = selector_.rule->query_factor(seen);
    for (int head : heads_)
      context_.kernels.scale(q + (t * query_heads + static_cast<size_t>(head) * group) * dim_,
                             factor, group * dim_);
  }
}

void HeadGroup::add_spans(size_t h, std::vector<Span>& spans) {
  if (sinks_[h].rows() > 0) {
    spans.push_back(sinks_[h].span());
    // Positions inside the cache: the sink moves up behind the window, by as many as were evicted.
    if (cache_positions_) spans.back().query_shift = -static_cast<int64_t>(plan_->state().gone());
  }
  if (!protected_.empty() && protected_[h].rows() > 0) add_protected_spans(h, spans);
  for (size_t i = 0; i < bodies_[h].stores(); ++i)
    if (bodies_[h].store(i).rows() > 0) spans.push_back(bodies_[h].store(i).span());
  const size_t before = spans.size();
  windows_[h].add_spans(spans);
  const ProtectedRows& protected_rows = plan_->protected_rows();
  if (protected_rows.ranges().empty()) return;
  // The ring numbers its rows by ordinals: each run between protected ranges becomes a span.
  const std::vector<Span> ring(spans.begin() + static_cast<ptrdiff_t>(before), spans.end());
  spans.resize(before);
  for (Span s : ring) {
    int64_t ordinal = s.first_position;
    for (size_t left = s.count; left > 0; left -= s.count) {
      s.first_position = protected_rows.position_of(ordinal);
      s.count = static_cast<size_t>(
          protected_rows.run_at(s.first_position, static_cast<int64_t>(left)).count);
      spans.push_back(s);
      s.first += s.count;
      ordinal += static_cast<int64_t>(s.count);
    }
  }
}

// Under cache positions a range stands before all newer rows that are left, so that it moves up by
// as many rows newer than itself as were evicted.
void HeadGroup::add_protected_spans(size_t h, std::vector<Span>& spans) {
  const Span all = protected_[h].span();
  if (!cache_positions_) {
    spans.push_back(all);
    return;
  }
  const auto evicted_end = static_cast<int64_t>(ordinals() - windows_[h].rows());
  for (const TokenRange& range : plan_->protected_rows().ranges()) {
    Span s = all;
    s.first = static_cast<size_t>(plan_->protected_rows().before(range.first));
    if (s.first >= all.count) break;
    s.count = std::min(static_cast<size_t>(range.last - range.first), all.count - s.first);
    if (!s.positions) s.first_position = range.first;
    const int64_t ordinal = range.last - plan_->protected_rows().before(range.last);
    s.query_shift = -std::max<int64_t>(0, evicted_end - ordinal);
    spans.push_back(s);
  }
}

BodyWidths HeadGroup::widths(size_t queries) const {
  BodyWidths most{.turned = codecs_.key->pre_rope()};
  for (const HeadBody& body : bodies_) {
    const RowStore& store = body.store();
    most.stores = std::max(most.stores, body.stores());
    most.prepared = std::max(most.prepared, store.keys().prepared_size(queries));
    most.width = std::max(most.width, store.values().accumulator_width());
  }
  most.prepared += queries * codecs_.key->width_to_come(dim_);
  most.width += codecs_.value->width_to_come(dim_);
  return most;
}

size_t HeadGroup::state_bytes() const {
  return selector_.chooser ? selector_.chooser->state_bytes() : 0;
}

size_t HeadGroup::ordinals() const {
  const auto position = static_cast<int64_t>(tokens_);
  return static_cast<size_t>(position - plan_->protected_rows().before(position));
}

void HeadGroup::protect(const ProtectedRows& rows) {
  if (forgets_) return;
  plan_->protect(rows.from(static_cast<int64_t>(plan_->shape().sink)));
  if (!protected_.empty() || plan_->protected_rows().ranges().empty()) return;
  for (int head : heads_) {
    RowFormat format;
    format.keys = codecs_.exact_key.get();
    format.values = codecs_.exact_value.get();
    format.dim = dim_;
    format.head = static_cast<uint32_t>(head);
    protected_.emplace_back(context_, format);
  }
}

NewRows HeadGroup::rows_of(const LayerRows& in, int head, size_t first, size_t count,
                           size_t kv_heads) const {
  const auto g = static_cast<size_t>(head);
  const size_t at = (first * kv_heads + g) * dim_;
  return {in.k + at,
          in.v + at,
          kv_heads * dim_,
          count,
          static_cast<int64_t>(tokens_),
          in.mass ? in.mass + g * in.tokens + first : nullptr};
}

void HeadGroup::append(const LayerRows& in, size_t kv_heads, Staging& staging, bool gathers) {
  const std::span<const Step> steps = plan_->append(in.tokens, gathers);
  BodySteps body(context_, selector_, bodies_);
  for (size_t i = 0, n = 0, done = 0; i < steps.size(); i += n) {
    const auto is_ours = [](const Step& s) {
      return s.op == Op::kAppend || s.from == Zone::kWindow;
    };
    n = 1;
    if (steps[i].op == Op::kAppend) {
      bring(steps[i], in, done, kv_heads, body);
      done += steps[i].rows;
    } else if (is_ours(steps[i])) {
      leave(steps[i].rows, staging, body);
    } else {
      while (i + n < steps.size() && !is_ours(steps[i + n])) ++n;
      body.run(steps.subspan(i, n));
    }
  }
}

void HeadGroup::end_prefill() {
  const bool gathered = plan_->state().gathers;
  const std::span<const Step> steps = plan_->end_prompt();
  BodySteps(context_, selector_, bodies_).run(steps);
  if (!gathered || steps.empty()) return;
  // Stores keep up to a page of each buffer for rows to come. Where a whole prompt was in them,
  // that is beyond what the policy's rows ever need, and adds up over layers: copies have no such
  // room.
  std::vector<HeadBody> copies(bodies_);
  bodies_.swap(copies);
}

void HeadGroup::archive(Archive& a, size_t tokens, const StreamNotes& notes) {
  if (a.loads()) {
    plan_->replay(tokens, notes.prompt_ends, {}, notes.gathered);
    tokens_ = tokens;
  }
  a.need(plan_->state().tokens == tokens, "layers that saw different tokens");
  for (size_t h = 0; h < heads_.size(); ++h) archive_head(a, h);
  size_t held = 0;
  for (const HeadBody& body : bodies_) held += body.rows();
  const size_t mean = plan_->state().body() + plan_->state().at(Zone::kHeavy);
  a.need(held <= mean * heads_.size(), "more rows stayed than the policy keeps");
  if (selector_.chooser) selector_.chooser->archive(a, {bodies_, rope_, tokens});
}

// The plan says how many rows of a head are where; a file must agree with it.
void HeadGroup::archive_head(Archive& a, size_t h) {
  const PlanState& state = plan_->state();
  sinks_[h].archive(a, tokens_);
  a.need(sinks_[h].rows() == state.at(Zone::kSink), "another number of first rows");
  if (!protected_.empty()) {
    protected_[h].archive(a, tokens_);
    a.need(protected_[h].rows() == state.at(Zone::kProtected), "another number of protected rows");
  }
  const size_t sink = state.at(Zone::kSink), window = state.at(Zone::kWindow);
  if (!plan_->shape().straight())
    windows_[h].archive(a, state.open - sink, state.open - sink - window,
                        static_cast<int64_t>(sink));
  bodies_[h].archive(a, tokens_);
  const size_t heavy = state.at(Zone::kHeavy);
  const HeadBody& body = bodies_[h];
  a.need(heavy == 0 || (body.stores() == 2 && body.store(1).rows() == heavy &&
                        body.store(1).role() == Role::kBoth),
         "another number of heavy rows than the policy keeps");
  a.need(plan_->rule().by_contents() ||
             (body.stores() == (heavy > 0 ? 2 : 1) && body.store().rows() == state.body()),
         "another number of rows than the policy keeps");
}

void HeadGroup::bring(const Step& step, const LayerRows& in, size_t first, size_t kv_heads,
                      BodySteps& body) {
  std::vector<NewRows> rows;
  for (size_t h = 0; h < heads_.size(); ++h) {
    NewRows one = rows_of(in, heads_[h], first, step.rows, kv_heads);
    if (step.to == Zone::kProtected) {
      protected_[h].append(one);
    } else if (step.to == Zone::kLeaving) {
      rows.push_back(one);
    } else {
      one.first_position = static_cast<int64_t>(ordinals());  // in the sink, the position itself
      if (step.to == Zone::kSink) sinks_[h].append(one);
      if (step.to == Zone::kWindow) windows_[h].push(one);
    }
  }
  if (!rows.empty()) body.bring(std::move(rows));
  tokens_ += step.rows;
}

void HeadGroup::leave(size_t count, Staging& staging, BodySteps& body) {
  const ProtectedRows& protected_rows = plan_->protected_rows();
  staging.k.resize(heads_.size() * count * dim_);
  staging.v.resize(heads_.size() * count * dim_);
  staging.mass.resize(heads_.size() * count);
  const int64_t ordinal = windows_[0].first_position();
  const auto wanted = static_cast<int64_t>(count);
  const int64_t first_position = protected_rows.position_of(ordinal);
  staging.positions.clear();
  if (protected_rows.position_of(ordinal + wanted - 1) != first_position + wanted - 1)
    for (int64_t i = 0; i < wanted; ++i)
      staging.positions.push_back(protected_rows.position_of(ordinal + i));
  std::vector<NewRows> rows;
  for (size_t h = 0; h < heads_.size(); ++h) {
    float* k = staging.k.data() + h * count * dim_;
    float* v = staging.v.data() + h * count * dim_;
    float* mass = staging.mass.data() + h * count;
    windows_[h].pop(k, v, mass, count);
    rows.push_back({k, v, dim_, count, first_position, mass,
                    staging.positions.empty() ? nullptr : staging.positions.data()});
  }
  body.bring(std::move(rows));
}

std::vector<HeadGroup::PlacedRow> HeadGroup::placed_rows(std::span<const Span> spans) {
  std::vector<PlacedRow> all;
  for (uint32_t n = 0; n < spans.size(); ++n) {
    const Span& s = spans[n];
    for (size_t i = s.first; i < s.first + s.count; ++i)
      all.push_back(
          {s.positions ? s.positions[i] : s.first_position + static_cast<int64_t>(i - s.first),
           s.log_weight + (s.log_weights ? s.log_weights[i] : 0.0f), s.role, n,
           static_cast<uint32_t>(i)});
  }
  std::sort(all.begin(), all.end(), [](const PlacedRow& a, const PlacedRow& b) {
    return a.position != b.position ? a.position < b.position : a.role < b.role;
  });
  return all;
}

HeadRows HeadGroup::rows(size_t h) {
  std::vector<Span> spans;
  add_spans(h, spans);
  HeadRows rows;
  for (const PlacedRow& row : placed_rows(spans)) {
    rows.positions.push_back(row.position);
    rows.log_weights.push_back(row.log_weight);
    rows.roles.push_back(row.role);
  }
  return rows;
}

void HeadGroup::read_rows(size_t h, float* k, float* v) {
  std::vector<Span> spans;
  add_spans(h, spans);
  std::optional<RopeCursor> cursor;
  if (rope_) cursor.emplace(*rope_);
  const std::vector<PlacedRow> rows = placed_rows(spans);
  for (size_t i = 0, n = 0; i < rows.size(); i += n) {
    const Span& span = spans[rows[i].span];
    n = 1;  // neighbours of one span are decoded together: codecs read whole groups
    while (i + n < rows.size() && rows[i + n].span == rows[i].span &&
           rows[i + n].row == rows[i].row + n)
      ++n;
    span.keys->decode(k + i * dim_, rows[i].row, n);
    if (span.keys_before_rope) {
      for (size_t r = 0; r < n; ++r)
        cursor->rotate_rows(context_.kernels, k + (i + r) * dim_, nullptr, rows[i + r].position, 1);
    }
    if (span.values)
      span.values->decode(v + i * dim_, rows[i].row, n);
    else
      std::fill_n(v + i * dim_, n * dim_, 0.0f);
  }
}

std::vector<double> HeadGroup::scores(size_t h) {
  if (!selector_.chooser) return {};
  const std::vector<std::vector<double>> all = selector_.chooser->scores(bodies_);
  if (all.empty()) return {};
  std::vector<Span> spans;
  add_spans(h, spans);
  const CodedRows* body = &bodies_[h].store().keys();
  std::vector<double> scores;
  for (const PlacedRow& row : placed_rows(spans))
    scores.push_back(spans[row.span].keys == body ? all[h][row.row]
                                                  : std::numeric_limits<double>::infinity());
  return scores;
}

Occupancy HeadGroup::held(size_t h) const {
  // Protected rows are exact ones like the sink's.
  const size_t of_protected = protected_.empty() ? 0 : protected_[h].rows();
  return {sinks_[h].rows() + of_protected, bodies_[h].rows(), windows_[h].rows()};
}

void HeadGroup::add_to(Ledger& ledger) const {
  for (size_t h = 0; h < heads_.size(); ++h) {
    sinks_[h].add_to(ledger);
    bodies_[h].add_to(ledger);
    windows_[h].add_to(ledger);
    if (!protected_.empty()) protected_[h].add_to(ledger);
  }
  const size_t state = state_bytes();
  ledger.metadata += state;
  if (state > 0) ledger.slack += selector_.chooser->allocated_state_bytes() - state;
  ledger.shared += codecs_.key->shared_bytes() + codecs_.value->shared_bytes();
  ledger.tokens = std::max<uint64_t>(ledger.tokens, tokens_);
  ledger.rows_seen += tokens_ * heads_.size();
  ledger.channels_seen += tokens_ * heads_.size() * 2 * dim_;
}

}  // namespace pith
