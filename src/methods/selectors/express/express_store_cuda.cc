// Express as the body of a layer on the GPU. The device keeps the stream; the host knows from the
// number of rows alone how many stand where.
//
// Over a codec all rows are codes. New ones are coded first; then the layer's rows are unpacked to
// memory that all layers have in turn, and the stream takes what the codes of the new ones give
// back, and writes where each row that is left came from. Codes then move as that says: no row is
// coded twice. Cost over codes: 1.5 s rows unpacked and moved, each time rows are taken.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "core/copied.h"
#include "kernels/cuda/fetched.h"
#include "methods/device_selector.h"
#include "methods/registry_cuda.h"
#include "methods/selectors/express/express_cuda.h"
#include "rows/cuda/code_room.h"
#include "rows/cuda/coded_store.h"
#include "select/wide_room.h"

namespace pith::cuda {
namespace {

// Bodies whose codes are in memory as rows together: so many, or while they take no more than that.
constexpr size_t kFew = 4, kRoom = size_t{16} << 20;  // bytes

class ExpressStore final : public BodyStore {
 public:
  ExpressStore(const ExpressRule& rule, const ExpressSite& place, const StoreSite& site)
      : rule_(rule), place_(place), site_(site), device_(*site.memory, rule, place, site.stream) {
    if (!site.codec) return;
    StoreSite of_codes = site;
    of_codes.context = static_cast<size_t>(device_.arrays().capacity) + kBlockRows;
    codes_ = std::make_unique<CodedStore>(site.codec, of_codes);
  }

  std::unique_ptr<BodyStore> clone() const override {
    return std::make_unique<ExpressStore>(*this);
  }
  /// Each body codes for itself, and brings its own rule: only the kernel must be one.
  std::string kind() const override {
    return fmt::format("express in {}, {}", to_string(place_.dtype), codes_ ? "codes" : "dense");
  }
  bool numbers_may_differ() const override { return true; }
  bool joins_caches() const override { return true; }
  size_t rows() const override { return state_.rows(); }
  void announce(size_t rows) override { advance(state_, rule_.shape, rows); }
  StoreRoom room(const ComingRows& coming) const override;
  void take(std::span<const BodyMove> moves) const override;
  void follow(const std::shared_ptr<const DeviceCodec>& codec) override {
    if (codes_) codes_->follow(codec);
  }
  const DeviceCodec* learning() const override { return codes_ ? codes_->learning() : nullptr; }
  size_t least() const override { return codes_ ? codes_->least_appended() : 0; }
  /// A halving is one block: many layers fill the card.
  size_t layers_together() const override {
    const auto heads = static_cast<size_t>(place_.heads);
    const auto all = static_cast<size_t>(device_info().multiprocessors);
    return std::clamp<size_t>(all / heads, 1, kMostExpressJobs);
  }

  DeviceSpan span(size_t head, size_t /*which*/) const override {
    DeviceSpan span = device_.span(head);
    if (!codes_) return span;
    const float* weights = span.log_weights;
    span = codes_->span(head, 0);
    span.log_weights = weights;
    return span;
  }
  bool even() const override { return !codes_ || codes_->even(); }
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    codes_ ? codes_->attend_token(call, scratch) : decode_dense(call, scratch, site_.stream);
  }
  void attend_chunk(ChunkAttention& attention, const CausalSpan& /*as*/,
                    const std::function<RowTarget()>& piece) const override {
    const ExpressArrays a = device_.arrays();
    const auto stride = static_cast<size_t>(a.capacity);
    CausalSpan span;
    if (!codes_) span = causal_span({a.k, a.v, stride * site_.dim, 0}, rows(), site_.dim);
    span.log_weights = a.log_weights;
    span.weights_stride = stride;
    codes_ ? codes_->attend_chunk(attention, span, piece) : attention.add(span);
  }

  bool keeps_positions() const override { return true; }
  void add_rows(HeadRows& out, size_t head, int64_t first_position) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const override {
    if (codes_) codes_->add_codes(codes, head, first);
  }
  void add_to(Ledger& ledger) const override {
    const size_t rows = site_.heads * this->rows();
    const size_t payload = codes_ ? 0 : rows * site_.dim * 4;
    const size_t metadata = rows * (sizeof(float) + sizeof(int64_t));
    ledger.payload += payload;
    ledger.metadata += metadata;
    ledger.slack += device_.allocated_bytes() - payload - metadata;
    codes_ ? codes_->add_to(ledger) : void(ledger.rows_kept += rows);
  }
  void archive(Archive& a, size_t tokens) override {
    device_.archive(a, tokens, site_.stream);
    state_ = device_.state();
    if (!codes_) return;
    codes_->archive(a, tokens);
    a.need(codes_->rows() == rows(), "another number of codes than the policy keeps");
  }

 private:
  /// A body whose codes are in memory as rows.
  struct Taken {
    ExpressStore* body;
    const BodyMove* move;
    ExpressArrays room;
  };

  static ExpressStore& body_of(const BodyMove& move) {
    return static_cast<ExpressStore&>(*move.body);
  }
  /// At most kMostExpressJobs.
  void take_together(std::span<const BodyMove> moves) const;
  ExpressJob job_of(const BodyMove& move);
  /// Of all heads, where codes are given back.
  size_t rows_of_room() const {
    return codes_ ? site_.heads * static_cast<size_t>(device_.arrays().capacity) : 0;
  }
  /// Codes new rows behind those held, which are unpacked to the job's room.
  void unfold(const BodyMove& move, const ExpressArrays& room);
  /// The rows that are left move to their place.
  void fold(const ExpressArrays& room);
  /// The same of bodies that are alike, in launches of all of them.
  static void unfold_all(std::span<const Taken> taken, cudaStream_t stream);
  static void fold_all(std::span<const Taken> taken, cudaStream_t stream);
  CodedBlocks::NewRows fresh_of(const BodyMove& move) const;
  BlockPiece held() const {
    return {0, (codes_->rows() + kBlockRows - 1) / kBlockRows, DType::kF16};
  }
  /// Bodies of one kind code equally, and equally many rows, beside equally many.
  using Kind =
      std::tuple<std::string, uint64_t, const void*, size_t, size_t, size_t, size_t, bool, bool>;
  Kind kind_of(const BodyMove& move) const;

  ExpressRule rule_;
  ExpressSite place_;
  StoreSite site_;
  ExpressDevice device_;
  Copied<CodedStore> codes_;  // null: rows lie in device_
  ExpressState state_;        // with the rows that are announced
};

// Rows in codes lie in memory while others are taken: as many bodies together as take little of it.
void ExpressStore::take(std::span<const BodyMove> moves) const {
  const bool many = std::ranges::max(moves, {}, &BodyMove::rows).rows > kBlockRows;
  const size_t least = many ? layers_together() : kFew;
  for (size_t first = 0, count = 0; first < moves.size(); first += count) {
    size_t bytes = 0;
    for (count = 0; first + count < moves.size() && count < kMostExpressJobs; ++count) {
      bytes += 4 * site_.dim * body_of(moves[first + count]).rows_of_room();
      if (count >= least && bytes > kRoom) break;
    }
    take_together(moves.subspan(first, count));
  }
}

// The room of bodies that are taken together is counted here, whosever they are.
StoreRoom ExpressStore::room(const ComingRows& coming) const {
  StoreRoom room;
  const auto held = static_cast<size_t>(device_.arrays().capacity);
  const size_t fresh = std::min(coming.rows, coming.at_once);
  const size_t wide = site_.heads * wide_coreset_bytes(rule_.shape.target);
  if (!codes_) return {0, wide};
  const size_t most = held + fresh + kBlockRows;
  room += codes_->room({coming.rows, fresh, most});
  const size_t body = 4 * site_.dim * rows_of_room();
  const size_t together = std::clamp(kRoom / body + 1, std::max(kFew, layers_together()),
                                     static_cast<size_t>(kMostExpressJobs));
  const CodeRoom::Shape codes{site_.codec->block_bytes(static_cast<int>(site_.dim)), site_.heads,
                              (most + kBlockRows - 1) / kBlockRows};
  room.passing += together * (body + sizeof(int32_t) * rows_of_room() + wide) +
                  CodeRoom::bytes(codes, together);
  return room;
}

void ExpressStore::take_together(std::span<const BodyMove> moves) const {
  size_t rows = 0;
  for (const BodyMove& move : moves) rows += body_of(move).rows_of_room();
  const size_t row = site_.dim * 2;  // bytes
  DeviceArray<std::byte> room(*site_.memory, MemoryKind::kScratch, 2 * rows * row, site_.stream);
  DeviceArray<int32_t> sources(*site_.memory, MemoryKind::kScratch, rows, site_.stream);
  ExpressJobs jobs;
  std::vector<Taken> taken;
  size_t first = 0;
  for (const BodyMove& move : moves) {
    ExpressStore& body = body_of(move);
    ExpressJob& job = jobs.job[jobs.count++] = body.job_of(move);
    if (!codes_) continue;
    const size_t own = body.rows_of_room();
    job.arrays.k = room.data() + 2 * first * row;
    job.arrays.v = room.data() + (2 * first + own) * row;
    job.arrays.sources = sources.data() + first;
    first += own;
    taken.push_back({&body, &move, job.arrays});
  }
  const auto kind = [](const Taken& t) { return t.body->kind_of(*t.move); };
  const auto each_kind = [&](const auto& f) {
    for (auto at = taken.begin(), end = at; at != taken.end(); at = end) {
      const Kind of_first = kind(*at);
      end = std::find_if(at, taken.end(), [&](const Taken& t) { return kind(t) != of_first; });
      f(std::span<const Taken>(at, end), site_.stream);
    }
  };
  std::ranges::stable_sort(taken, {}, kind);
  each_kind(unfold_all);
  const bool wide = express_takes_wide(jobs);
  for (int i = 0; wide && i < jobs.count; ++i) {
    express_take_wide(jobs.job[i], *site_.memory, site_.stream);
  }
  if (!wide) express_take(jobs, site_.stream);
  each_kind(fold_all);
}

ExpressJob ExpressStore::job_of(const BodyMove& move) {
  const RowTarget& from = move.from;
  const size_t at = static_cast<size_t>(from.row) * site_.dim * 2;
  return device_.job({static_cast<const std::byte*>(from.k) + at,
                      static_cast<const std::byte*>(from.v) + at, from.head_stride, site_.dim,
                      static_cast<int>(move.rows), static_cast<int32_t>(move.positions_stride),
                      move.positions, move.position});
}

ExpressStore::Kind ExpressStore::kind_of(const BodyMove& move) const {
  const DeviceCodec& codec = codes_->codec();
  // Tables are a codec's own, and so are the records that rows name.
  const bool own = codec.learns_from() > 0 || codec.shared_bytes() > 0 || codec.record_bytes() > 0;
  return {codec.name(), place_.seed,     own ? this : nullptr,
          site_.heads,  codes_->rows(),  rows(),
          move.rows,    move.given_back, codes_->blocks().crowded()};
}

CodedBlocks::NewRows ExpressStore::fresh_of(const BodyMove& move) const {
  const DType dtype = move.given_back ? DType::kF16 : site_.dtype;
  // A row's own code gives back the same numbers again; another group's does not, nor does that of
  // a key that was rotated in between.
  const bool differs = !move.given_back || site_.shares || site_.codec->learns_from() > 0;
  const RowPositions positions =
      move.positions ? RowPositions(move.positions, move.positions_stride, move.rows)
                     : RowPositions(move.position);
  return {move.from, move.rows, positions, dtype, differs};
}

void ExpressStore::unfold(const BodyMove& move, const ExpressArrays& room) {
  const RowTarget to{room.k, room.v, static_cast<size_t>(room.capacity) * site_.dim, 0};
  if (held().blocks > 0) codes_->blocks().calls().unpack(to, held());
  codes_->append(fresh_of(move));
}

void ExpressStore::unfold_all(std::span<const Taken> taken, cudaStream_t stream) {
  const ExpressStore& any = *taken.front().body;
  if (taken.size() == 1 || any.fresh_of(*taken.front().move).give_back) {
    for (const Taken& t : taken) t.body->unfold(*t.move, t.room);
    return;
  }
  const DeviceCodec& codec = any.codes_->codec();
  std::vector<UnpackRowsCall> keys, values;
  for (const Taken& t : taken) {
    const auto [of_keys, of_values] = t.body->codes_->blocks().calls().unpack_calls(
        {t.room.k, t.room.v, static_cast<size_t>(t.room.capacity) * any.site_.dim, 0},
        t.body->held());
    keys.push_back(of_keys);
    values.push_back(of_values);
  }
  if (any.held().blocks > 0) {
    codec.unpack_keys_of(keys, stream);
    codec.unpack_values_of(values, stream);
  }
  std::vector<CodeWork> works;
  for (const Taken& t : taken) t.body->codes_->append(t.body->fresh_of(*t.move), &works);
  const CodeRoom::Shape shape = room_of(works.front());
  const DeviceArray<std::byte> memory(*any.site_.memory, MemoryKind::kScratch,
                                      CodeRoom::bytes(shape, works.size()), stream);
  const CodeRoom room(memory.data(), shape, works.size());
  code_works(works, &room, stream);
}

void ExpressStore::fold(const ExpressArrays& room) {
  codes_->blocks().keep(room.sources, static_cast<size_t>(room.capacity), rows());
}

void ExpressStore::fold_all(std::span<const Taken> taken, cudaStream_t stream) {
  const ExpressStore& any = *taken.front().body;
  if (taken.size() == 1 || any.codes_->blocks().crowded()) {
    for (const Taken& t : taken) t.body->fold(t.room);
    return;
  }
  const DeviceCodec& codec = any.codes_->codec();
  std::vector<MoveCodesCall> moves;
  for (const Taken& t : taken) {
    moves.push_back(t.body->codes_->blocks().keep_later(t.body->rows()));
    moves.back().kept = t.room.sources;
    moves.back().kept_stride = static_cast<size_t>(t.room.capacity);
  }
  const DeviceArray<std::byte> memory(*any.site_.memory, MemoryKind::kScratch,
                                      keep_bytes(codec, moves), stream);
  keep_through(memory.data(), codec, moves, stream);
}

void ExpressStore::add_rows(HeadRows& out, size_t head, int64_t) const {
  const ExpressArrays a = device_.arrays();
  const size_t at = head * static_cast<size_t>(a.capacity);
  std::ranges::copy(fetched(a.positions + at, rows(), site_.stream),
                    std::back_inserter(out.positions));
  std::ranges::copy(fetched(a.log_weights + at, rows(), site_.stream),
                    std::back_inserter(out.log_weights));
}

/// Of a layer's streams; `dtype` of its exact rows.
ExpressSite express_site(const SelectorSite& site, bool coded, DType dtype) {
  ExpressSite place;
  place.coded = coded;
  place.dtype = coded ? DType::kF16 : dtype;  // f16 keeps more of a code's number
  place.dim = static_cast<int>(site.head_dim);
  place.heads = static_cast<int>(site.heads);
  place.first_position = site.sink;
  place.seed = site.seed;
  place.layer = site.layer;
  place.first_head = site.first_head;
  return place;
}

}  // namespace

SelectorOnGpu make_express_on_gpu(const SelectorPlace& place) {
  const ExpressOptions options = place.options.as<ExpressOptions>().at(place.budget);
  const ExpressRule rule = express_rule(options, place.budget, place.site.scale);
  express_site(place.site, false, StoreSite().dtype).check(rule);
  const BodyMaker make = [rule, site = place.site](const StoreSite& body) {
    return std::make_unique<ExpressStore>(
        rule, express_site(site, body.codec != nullptr, body.dtype), body);
  };
  return {make, nullptr, options.heavy.sizes(place.budget)};
}

}  // namespace pith::cuda
