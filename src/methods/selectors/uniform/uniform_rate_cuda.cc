// uniform(rate=...) as the body of a layer on the GPU: dense rows, or codes and a dense tail.
//
// Whether a row stays is a function of its position alone: the host draws as the device does, and
// so knows each head's number of rows. Which rows a heavy store evicts only the device knows: the
// host then reckons with all of them, makes room for so many, and reads the numbers before it needs
// them next (docs/decisions/0191).
//
// Over a codec each head's rows go into codes in its groups, in the order in which they came, as on
// the CPU; those of the last group, which is not full yet, are dense. Heads fill their groups at
// different times: all heads' rows that might be a group are coded apart, and a second kernel takes
// those that are. Rows are never selected again, so that any codec will do that needs neither their
// neighbours' positions nor tables of first rows. Rows that a heavy store evicts are coded again,
// in a codec whose rows share nothing, as on the CPU.
//
// Cost beside dense rows: coding of up to 1 / rate as many rows as stay while tokens come one by
// one (32 of each head for 32 tokens), codes copied once.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/copied.h"
#include "kernels/cuda/fetched.h"
#include "kernels/cuda/pinned.h"
#include "methods/selectors/uniform/uniform_cuda.h"
#include "methods/selectors/uniform/uniform_rate_cuda.h"
#include "pith/error.h"
#include "plan/protected_rows.h"
#include "rows/cuda/coded_store.h"
#include "select/draws.h"

namespace pith::cuda {
namespace {

constexpr size_t kPieceRows = 8192;  // unpacked at a time

struct RateRule {
  double rate = 1;
  float log_weight = 0;
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
  bool evicted = false;  ///< rows come from a heavy store
};

constexpr DeviceGrowth kPositions = device_rows();

/// f(moves) for as many as a launch takes, until all have been.
template <class F>
void by_launch(std::span<const BodyMove> moves, size_t most, const F& f) {
  for (; !moves.empty(); moves = moves.subspan(std::min(most, moves.size())))
    f(moves.first(std::min(most, moves.size())));
}

class RateStore final : public BodyStore {
 public:
  RateStore(const RateRule& rule, const StoreSite& site);

  std::unique_ptr<BodyStore> clone() const override { return std::make_unique<RateStore>(*this); }
  std::string kind() const override {
    return fmt::format("uniform by rate {} over {}, {} heads from {}", rule_.rate,
                       codes_ ? site_.codec->name() : "dense rows", site_.heads, rule_.first_head);
  }
  size_t rows() const override { return most(); }
  void announce(size_t rows) override;
  StoreRoom room(const ComingRows& coming) const override;
  void protect(std::span<const TokenRange> ranges) override {
    protected_ = {};
    protected_.add(ranges, 0, 0);
  }
  void take(std::span<const BodyMove> moves) const override;

  /// Codes, and dense rows.
  size_t spans() const override { return codes_ ? 2 : 1; }
  DeviceSpan span(size_t head, size_t which) const override;
  bool even() const override { return false; }  // heads have drawn rows of their own
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    codes_ ? codes_->attend_token(call, scratch) : decode_dense(call, scratch, site_.stream);
  }
  void attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                    const std::function<RowTarget()>& piece) const override;

  DType given_back() const override { return site_.dtype; }

  bool keeps_positions() const override { return true; }
  void add_rows(HeadRows& out, size_t head, int64_t first_position) const override;
  void add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const override {
    if (codes_) codes.push_back({codes_.get(), head, first, coded(head)});
  }
  void add_to(Ledger& ledger) const override;
  void archive(Archive& a, size_t tokens) override;

 private:
  /// Rows behind the coded ones while new ones come, and codes of their groups.
  struct Work {
    RowTarget rows;
    CodedStore* codes = nullptr;
    size_t groups = 0;  ///< the most that are full in a head
    std::unique_ptr<DeviceBuffer> own_rows;
    std::unique_ptr<CodedStore> own_codes;
  };
  using Works = std::map<const BodyStore*, Work>;
  Work begin_take();
  /// Codes what is full of the works' groups, and takes each head's own.
  static void code_groups(std::span<const BodyMove> moves, const Works& works,
                          const GroupShape& shape, cudaStream_t stream);
  GroupJob group_job(const Work& work) const;

  /// Rows of each head when `rows` more have come: the most, if only the device draws.
  std::vector<size_t> drawn(size_t rows);
  RateJob job_of(const BodyMove& move, const RowTarget& rows) const;
  void archive_counts(Archive& a, size_t tokens);

  /// [G], with what was announced: the most until it is taken, if only the device draws. Waits for
  /// the numbers of the last rows taken then.
  const std::vector<size_t>& counts() const { return counts_.get(); }
  size_t most() const { return *std::ranges::max_element(counts()); }
  size_t total() const { return std::accumulate(counts().begin(), counts().end(), size_t{0}); }
  size_t whole(size_t rows) const { return codes_ ? rows / group_ * group_ : 0; }
  size_t coded(size_t head) const { return whole(counts()[head]); }
  size_t most_coded() const { return whole(most()); }
  /// Fits what waits and 32 rows more.
  size_t tail_rows() const { return device_sample_rows(group_); }
  int32_t* device_coded() const { return device_counts_.at<int32_t>(); }
  int32_t* device_waiting() const { return device_coded() + site_.heads; }
  /// Coders see no numbers but those of rows.
  void clear(void* memory, size_t bytes) const {
    check(cudaMemsetAsync(memory, 0, bytes, site_.stream), "rows of a sample");
  }

  RateRule rule_;
  StoreSite site_;
  Slab positions_;              // [G, capacity] of int32_t
  Slab held_;                   // [G] rows, as the kernels count them
  mutable ToldNumbers counts_;  // [G]
  ProtectedRows protected_;     // behind the sink
  int64_t next_;                // of the next row, numbered without the protected ones
  std::vector<size_t> taken_;   // [G] rows, without what was announced
  size_t group_ = 0;            // rows that are coded together
  Copied<CodedStore> codes_;    // room for the most rows of a head; null: all are dense
  // Of a head as many as of that with the most, announced ones among them; over codes tail_rows().
  DenseStore dense_;
  Slab device_counts_;        // [2, G] rows in codes, and behind them
  Copied<CodedStore> apart_;  // a group of each head, or null until one was coded
};

RateStore::RateStore(const RateRule& rule, const StoreSite& site)
    : rule_(rule),
      site_(site),
      positions_(*site.memory, MemoryKind::kMetadata, {site.heads, sizeof(int32_t)}, site.stream),
      held_(*site.memory, MemoryKind::kMetadata, {1, sizeof(int32_t), true}, site.stream),
      counts_(site.heads),
      next_(site.position),
      taken_(site.heads, 0),
      dense_(*site.memory, {site.heads, site.dim, 0}, site.stream),
      device_counts_(*site.memory, MemoryKind::kMetadata, {2, sizeof(int32_t), true}, site.stream) {
  held_.renew(site.heads);
  if (!site.codec) return;
  const GroupedBytes bytes = site.codec->block_bytes(static_cast<int>(site.dim));
  for (const size_t n : {bytes.key_codes, bytes.key_side, bytes.value_codes, bytes.value_side}) {
    if (n % 16 > 0) throw Error(ErrorCode::kInternal, "codes of a sample are moved by 16 bytes");
  }
  group_ = site.codec->block_rows();
  codes_ = std::make_unique<CodedStore>(site.codec, site);
  dense_.make_room(tail_rows());
  dense_.add(tail_rows());
  clear(dense_.keys(), dense_.allocated_bytes());
  device_counts_.renew(site.heads);
}

std::vector<size_t> RateStore::drawn(size_t rows) {
  std::vector<size_t> after = counts();
  if (rule_.evicted) {
    for (size_t& most : after) most += rows;
    return after;
  }
  std::vector<Philox> random;
  for (size_t g = 0; g < site_.heads; ++g)
    random.emplace_back(rule_.seed, rule_.layer, rule_.first_head + static_cast<uint32_t>(g));
  for (size_t i = 0; i < rows; ++i) {
    const int64_t position = protected_.position_of(next_++);
    for (size_t g = 0; g < site_.heads; ++g)
      after[g] += stays_by_rate(random[g], position, rule_.rate);
  }
  return after;
}

void RateStore::announce(size_t rows) {
  taken_ = counts();
  std::vector<size_t> after = drawn(rows);
  // Rows held move before the new ones come: their number is still the old.
  const size_t needed = *std::ranges::max_element(after), room = positions_.capacity();
  if (needed > room) positions_.renew(kPositions.from(room, needed), {0, most()});
  counts_.set(std::move(after));
  const size_t rows_now = codes_ ? most_coded() : most();
  const size_t more = rows_now - std::min(rows_now, codes_ ? codes_->rows() : dense_.rows());
  if (codes_) return codes_->announce(more);
  dense_.reserve_more(more);
  dense_.add(more);
}

// Where only the device draws the host reckons with all rows until it knows better.
StoreRoom RateStore::room(const ComingRows& coming) const {
  const size_t drawn = coming.most + (rule_.evicted ? coming.at_once : 0);
  const size_t rows = ComingRows{coming.rows, coming.at_once, drawn}.held_with(most());
  StoreRoom room;
  if (rows > positions_.capacity()) {
    room += StoreRoom::growth(positions_, kPositions.most_for(rows));
  }
  if (!codes_) return room += dense_.room(rows);
  const ComingRows in_codes{rows - std::min(rows, most_coded()), coming.at_once, rows};
  room += codes_->room(in_codes);
  const size_t fresh = tail_rows() + coming.at_once;
  if (!apart_) room.more += codes_bytes(*site_.codec, site_, group_);
  room.passing += codes_bytes(*site_.codec, site_, fresh) + 4 * site_.heads * fresh * site_.dim;
  return room;
}

RateStore::Work RateStore::begin_take() {
  Work work;
  size_t needed = 0;
  for (size_t g = 0; g < site_.heads; ++g) {
    const size_t waits = taken_[g] % group_ + counts()[g] - taken_[g];
    needed = std::max(needed, waits);
    work.groups = std::max(work.groups, waits / group_);
  }
  work.rows = dense_.begin();
  if (needed <= tail_rows()) {  // one group at most
    if (work.groups > 0 && !apart_) {
      apart_ = std::make_unique<CodedStore>(site_.codec, site_);
      apart_->announce(group_);
    }
    work.codes = apart_.get();
    return work;
  }
  work.own_rows = std::make_unique<DeviceBuffer>(*site_.memory, MemoryKind::kScratch);
  work.own_rows->allocate(4 * site_.heads * needed * site_.dim, site_.stream);
  clear(work.own_rows->data(), work.own_rows->size());
  work.rows = rows_in(*work.own_rows, needed, site_.dim);
  copy_rows({work.rows, dense_.begin(), group_ - 1, site_.heads, site_.dim}, site_.stream);
  work.own_codes = std::make_unique<CodedStore>(site_.codec, site_);
  work.own_codes->announce(work.groups * group_);
  work.codes = work.own_codes.get();
  return work;
}

GroupJob RateStore::group_job(const Work& work) const {
  GroupJob job;
  job.counts = held_.at<int32_t>();
  job.coded = device_coded();
  job.waiting = device_waiting();
  job.rows = work.rows;
  job.tail = dense_.begin();
  if (work.groups == 0) return job;
  job.from = work.codes->blocks().all();
  job.to = codes_->blocks().all();
  return job;
}

RateJob RateStore::job_of(const BodyMove& move, const RowTarget& rows) const {
  const size_t at = static_cast<size_t>(move.from.row) * site_.dim * 2;
  RateSample to{rows.k, rows.v, static_cast<int>(rows.head_stride / site_.dim)};
  to.positions = positions_.at<int32_t>();
  to.positions_stride = static_cast<int>(positions_.capacity());
  to.counts = held_.at<int32_t>();
  if (codes_) to.coded = device_coded();
  RateJob job{to, static_cast<const std::byte*>(move.from.k) + at,
              static_cast<const std::byte*>(move.from.v) + at, move.from.head_stride,
              static_cast<int>(move.rows)};
  job.positions_stride = static_cast<int32_t>(move.positions_stride);
  job.positions = move.positions;
  job.position = move.position;
  job.layer = rule_.layer;
  job.first_head = rule_.first_head;
  return job;
}

void RateStore::take(std::span<const BodyMove> moves) const {
  Works works;
  const RateDraw draw{rule_.rate, rule_.seed, static_cast<int>(site_.heads),
                      static_cast<int>(site_.dim)};
  by_launch(moves, kMostRateJobs, [&](std::span<const BodyMove> some) {
    RateJobs jobs;
    for (const BodyMove& move : some) {
      auto& body = static_cast<RateStore&>(*move.body);
      RowTarget rows = body.dense_.begin();
      if (codes_) rows = (works[move.body] = body.begin_take()).rows;
      jobs.job[jobs.count++] = body.job_of(move, rows);
    }
    take_by_rate(draw, jobs, site_.stream);
  });
  if (codes_) {
    const GroupedBytes bytes = site_.codec->block_bytes(static_cast<int>(site_.dim));
    code_groups(moves, works, {draw.heads, draw.dim, static_cast<int>(group_), bytes},
                site_.stream);
  }
  for (const BodyMove& move : moves) {
    const auto& body = static_cast<const RateStore&>(*move.body);
    if (rule_.evicted) body.counts_.tell(body.held_.at<int32_t>(), site_.stream);
  }
}

void RateStore::code_groups(std::span<const BodyMove> moves, const Works& works,
                            const GroupShape& shape, cudaStream_t stream) {
  std::map<size_t, std::vector<BodyMove>> together;  // to be coded
  for (const BodyMove& move : moves) {
    const Work& work = works.at(move.body);
    if (work.groups == 0) continue;
    const size_t rows = work.groups * static_cast<size_t>(shape.group);
    together[work.groups].push_back({work.codes, work.rows, rows});
  }
  for (const auto& [groups, coded] : together) coded.front().body->take(coded);
  by_launch(moves, kMostGroupJobs, [&](std::span<const BodyMove> some) {
    GroupJobs jobs;
    for (const BodyMove& move : some)
      jobs.job[jobs.count++] =
          static_cast<const RateStore&>(*move.body).group_job(works.at(move.body));
    take_groups(shape, jobs, stream);
  });
}

DeviceSpan RateStore::span(size_t head, size_t which) const {
  const size_t in_codes = coded(head);
  DeviceSpan span;
  if (which + 1 < spans()) {
    if (in_codes > 0) span = codes_->span(head, 0);
    span.coded = 1;
    span.rows = static_cast<int32_t>(in_codes);
  } else {
    span = dense_span(dense_.begin(), head, counts()[head] - in_codes, site_.dim);
    span.ready_rows = span.rows;
  }
  span.log_weight = rule_.log_weight;
  return span;
}

void RateStore::attend_chunk(ChunkAttention& attention, const CausalSpan& as,
                             const std::function<RowTarget()>& piece) const {
  const auto attend = [&](const RowTarget& rows, size_t first, size_t count, const int32_t* each) {
    CausalSpan span = causal_span(rows, count, site_.dim);
    span.log_weight = as.log_weight + rule_.log_weight;
    span.head_rows_before = static_cast<int64_t>(first);
    span.heads.rows = each;
    attention.add(span);
  };
  size_t most = 0;  // dense rows
  for (const size_t count : counts()) most = std::max(most, count - whole(count));
  const int32_t* dense = codes_ ? device_waiting() : held_.at<int32_t>();
  if (most > 0) attend(dense_.begin(), 0, most, dense);
  for (size_t first = 0; first < most_coded(); first += kPieceRows) {
    const size_t count = std::min(kPieceRows, most_coded() - first);
    const RowTarget to = piece();
    codes_->blocks().calls().unpack(to, {first / kBlockRows, count / kBlockRows, site_.dtype});
    attend(to, first, count, device_coded());
  }
}

void RateStore::add_rows(HeadRows& out, size_t head, int64_t) const {
  const auto positions = fetched(positions_.at<int32_t>(head), counts()[head], site_.stream);
  out.positions.insert(out.positions.end(), positions.begin(), positions.end());
  out.log_weights.insert(out.log_weights.end(), positions.size(), rule_.log_weight);
}

// The bodies of codes know of one number of rows: what they have is what all of it takes.
void RateStore::add_to(Ledger& ledger) const {
  size_t in_codes = 0;
  for (size_t g = 0; g < site_.heads; ++g) in_codes += coded(g);
  const size_t dense = (total() - in_codes) * site_.dim * 4;
  const size_t positions = total() * sizeof(int32_t);
  ledger.payload += dense;
  ledger.metadata += positions + held_.allocated_bytes();
  ledger.slack += dense_.allocated_bytes() - dense + positions_.allocated_bytes() - positions;
  ledger.rows_kept += total();
  if (!codes_) return;
  const GroupedBytes bytes = site_.codec->block_bytes(static_cast<int>(site_.dim));
  Ledger of_codes, apart;
  codes_->add_to(of_codes);
  if (apart_) apart_->add_to(apart);
  const size_t payload = in_codes / kBlockRows * (bytes.key_codes + bytes.value_codes);
  const size_t sides = in_codes / kBlockRows * (bytes.key_side + bytes.value_side);
  const auto all = [](const Ledger& l) { return l.payload + l.metadata + l.slack; };
  ledger.payload += payload;
  ledger.metadata += sides + device_counts_.allocated_bytes();
  ledger.slack += all(of_codes) - payload - sides + all(apart);
  ledger.shared += of_codes.shared;
}

void RateStore::archive_counts(Archive& a, size_t tokens) {
  std::vector<size_t> each = counts();  // the device's, if only it knows
  a.number(next_, site_.position + static_cast<int64_t>(tokens), "more rows than tokens");
  a.need(next_ >= site_.position, "a sample that begins in the sink");
  for (size_t& count : each) a.number(count, tokens, "more rows than tokens");
  a.check_left(*std::ranges::max_element(each), sizeof(int32_t));
  if (a.loads()) {
    counts_.set(each);
    if (most() > 0) positions_.renew(kPositions.from(0, most()));
    put(held_.at<int32_t>(), {each.begin(), each.end()}, site_.stream);
  }
  for (size_t g = 0; g < site_.heads; ++g) {
    archive_numbers(a, {positions_.at(g), each[g] * sizeof(int32_t)}, 0,
                    static_cast<int32_t>(tokens) - 1, site_.stream);
  }
}

void RateStore::archive(Archive& a, size_t tokens) {
  archive_counts(a, tokens);
  if (!codes_) return dense_.archive(a, counts(), site_.dtype);
  std::vector<size_t> in_codes, waiting;
  for (size_t g = 0; g < site_.heads; ++g) {
    in_codes.push_back(coded(g));
    waiting.push_back(counts()[g] - coded(g));
  }
  codes_->archive_heads(a, tokens, in_codes);
  archive_rows(a, dense_.begin(), waiting, {site_.dim, site_.dtype, site_.stream});
  if (!a.loads()) return;
  std::vector<int32_t> counts(in_codes.begin(), in_codes.end());
  counts.insert(counts.end(), waiting.begin(), waiting.end());
  put(device_coded(), counts, site_.stream);
}

}  // namespace

BodyMaker make_rate_body(const UniformOptions& options, const SelectorSite& site) {
  const double rate = options.drawn();
  const float log_weight = options.weights ? static_cast<float>(-std::log(rate)) : 0;
  const RateRule rule{rate,       log_weight,      site.seed,
                      site.layer, site.first_head, options.heavy.heavy.has_value()};
  return [rule](const StoreSite& body) { return std::make_unique<RateStore>(rule, body); };
}

}  // namespace pith::cuda
