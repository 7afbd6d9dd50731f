// uniform(rate=...) over codes on the GPU: each head's rows go into codes in the groups of the
// codec, in the order in which they came, as on the CPU; those of the last group, which is not full
// yet, are dense. Heads fill their groups at different times: all heads' rows that might be a group
// are coded apart, and a second kernel takes those that are. Rows are never judged again, so that
// any codec will do that needs neither their neighbours' positions nor tables of first rows. What a
// heavy store lets go is coded again, in a codec whose rows share nothing, as on the CPU.
//
// Cost beside dense rows: coding of up to 1 / rate as many rows as stay while tokens come one by
// one (32 of each head for 32 tokens), codes copied once.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "attend/cuda/coded_body.h"
#include "methods/baselines/uniform_rate_cuda.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr size_t kPieceRows = 8192;  // unpacked at a time

class CodedRateBody final : public DeviceBody {
 public:
  CodedRateBody(const RateRule& rule, const BodySite& site);
  CodedRateBody(const CodedRateBody& other);

  std::unique_ptr<DeviceBody> clone() const override {
    return std::make_unique<CodedRateBody>(*this);
  }
  std::string kind() const override {
    return fmt::format("uniform by rate {} over {}", drawn_.rule().rate, site_.codec->name());
  }
  size_t rows() const override { return drawn_.most(); }
  void announce(size_t rows) override;
  void protect(std::span<const TokenRange> ranges) override { drawn_.protect(ranges); }
  void take(std::span<const BodyMove> moves) const override;

  size_t spans() const override { return 2; }
  DeviceSpan span(size_t head, size_t which) const override;
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    site_.codec->attend(call, scratch, site_.stream);
  }
  void attend_chunk(CausalCall& call, const std::function<RowTarget()>& piece) const override;

  DType given_back() const override { return site_.dtype; }

  bool keeps_positions() const override { return true; }
  void add_rows(HeadRows& out, size_t head, int64_t) const override { drawn_.add_rows(out, head); }
  void add_codes(std::vector<HeadCodes>& codes, size_t head, size_t first) const override {
    codes.push_back({&codes_, head, first, coded(head)});
  }
  void add_to(Ledger& ledger) const override;
  void archive(Archive& a, size_t tokens) override;

 private:
  /// Rows behind the coded ones while new ones come, and codes of their groups.
  struct Work {
    RowTarget rows;
    CodedBody* codes = nullptr;
    size_t groups = 0;  ///< the most that are full in a head
    std::unique_ptr<DeviceBuffer> own_rows;
    std::unique_ptr<CodedBody> own_codes;
  };
  Work begin_take();
  SettleJob settle_job(const Work& work) const;

  size_t coded(size_t head) const { return drawn_.counts()[head] / group_ * group_; }
  size_t most_coded() const { return drawn_.most() / group_ * group_; }
  /// Fits what waits and 32 rows more.
  size_t tail_rows() const { return group_ + kBlockRows - 1; }
  RowTarget tail() const { return rows_in(tail_, tail_rows(), site_.dim); }
  int32_t* device_coded() const { return static_cast<int32_t*>(device_counts_.data()); }
  int32_t* device_waiting() const { return device_coded() + site_.heads; }
  /// Memory for `rows` rows of each head, zeros: coders see no numbers but those of rows.
  void allocate_rows(DeviceBuffer& buffer, size_t rows) const {
    buffer.allocate(4 * site_.heads * rows * site_.dim, site_.stream);
    check(cudaMemsetAsync(buffer.data(), 0, buffer.size(), site_.stream), "rows of a sample");
  }

  RateDrawn drawn_;
  BodySite site_;
  size_t group_;                      // rows that are coded together
  std::vector<size_t> taken_;         // [G] rows, without what was announced
  CodedBody codes_;                   // room for the most rows of a head
  DeviceBuffer tail_;                 // [2, G, tail_rows, D]
  DeviceBuffer device_counts_;        // [2, G] rows in codes, and in the tail
  std::unique_ptr<CodedBody> apart_;  // a group of each head, or null until one was coded
};

CodedRateBody::CodedRateBody(const RateRule& rule, const BodySite& site)
    : drawn_(rule, site),
      site_(site),
      group_(site.codec->block_rows()),
      taken_(site.heads, 0),
      codes_(site.codec, site),
      tail_(*site.memory, MemoryKind::kPayload),
      device_counts_(*site.memory, MemoryKind::kMetadata) {
  const GroupedBytes bytes = site.codec->block_bytes(static_cast<int>(site.dim));
  for (const size_t n : {bytes.key_codes, bytes.key_side, bytes.value_codes, bytes.value_side}) {
    if (n % 16 > 0) throw Error(ErrorCode::kInternal, "codes of a sample are moved by 16 bytes");
  }
  allocate_rows(tail_, tail_rows());
  device_counts_.allocate(2 * site.heads * sizeof(int32_t), site.stream);
  check(cudaMemsetAsync(device_counts_.data(), 0, device_counts_.size(), site.stream), "a sample");
}

CodedRateBody::CodedRateBody(const CodedRateBody& o)
    : drawn_(o.drawn_),
      site_(o.site_),
      group_(o.group_),
      taken_(o.taken_),
      codes_(o.codes_),
      tail_(*site_.memory, MemoryKind::kPayload),
      device_counts_(*site_.memory, MemoryKind::kMetadata) {
  copy_buffer(tail_, o.tail_, site_.stream);
  copy_buffer(device_counts_, o.device_counts_, site_.stream);
}

void CodedRateBody::announce(size_t rows) {
  taken_ = drawn_.counts();
  drawn_.announce(rows);
  const size_t most = most_coded();
  if (most > codes_.rows()) codes_.announce(most - codes_.rows());
}

CodedRateBody::Work CodedRateBody::begin_take() {
  Work work;
  size_t needed = 0;
  for (size_t g = 0; g < site_.heads; ++g) {
    const size_t waits = taken_[g] % group_ + drawn_.counts()[g] - taken_[g];
    needed = std::max(needed, waits);
    work.groups = std::max(work.groups, waits / group_);
  }
  work.rows = tail();
  if (needed <= tail_rows()) {  // one group at most
    if (work.groups > 0 && !apart_) {
      apart_ = std::make_unique<CodedBody>(site_.codec, site_);
      apart_->announce(group_);
    }
    work.codes = apart_.get();
    return work;
  }
  work.own_rows = std::make_unique<DeviceBuffer>(*site_.memory, MemoryKind::kScratch);
  allocate_rows(*work.own_rows, needed);
  work.rows = rows_in(*work.own_rows, needed, site_.dim);
  copy_rows({work.rows, tail(), group_ - 1, site_.heads, site_.dim}, site_.stream);
  work.own_codes = std::make_unique<CodedBody>(site_.codec, site_);
  work.own_codes->announce(work.groups * group_);
  work.codes = work.own_codes.get();
  return work;
}

SettleJob CodedRateBody::settle_job(const Work& work) const {
  SettleJob job;
  job.counts = drawn_.device_counts();
  job.coded = device_coded();
  job.waiting = device_waiting();
  job.rows = work.rows;
  job.tail = tail();
  if (work.groups == 0) return job;
  job.from = work.codes->all_blocks();
  job.to = codes_.all_blocks();
  return job;
}

void CodedRateBody::take(std::span<const BodyMove> moves) const {
  std::map<const DeviceBody*, Work> works;
  const RateDraw draw{drawn_.rule().rate, drawn_.rule().seed, static_cast<int>(site_.heads),
                      static_cast<int>(site_.dim)};
  std::map<size_t, std::vector<BodyMove>> groups;  // to be coded together
  take_all(moves, draw, site_.stream, [&](const BodyMove& move) {
    auto& body = static_cast<CodedRateBody&>(*move.body);
    const Work& work = works[move.body] = body.begin_take();
    if (work.groups > 0) {
      groups[work.groups].push_back({work.codes, work.rows, work.groups * group_});
    }
    RateSample to{work.rows.k, work.rows.v, static_cast<int>(work.rows.head_stride / site_.dim)};
    to.coded = body.device_coded();
    return body.drawn_.job(move, to);
  });
  for (const auto& [count, coded] : groups) coded.front().body->take(coded);
  const GroupedBytes bytes = site_.codec->block_bytes(static_cast<int>(site_.dim));
  const SettleShape shape{draw.heads, draw.dim, static_cast<int>(group_), bytes};
  SettleJobs jobs;
  for (size_t i = 0; i < moves.size(); ++i) {
    const auto& body = static_cast<const CodedRateBody&>(*moves[i].body);
    jobs.job[jobs.count++] = body.settle_job(works.at(moves[i].body));
    if (jobs.count < kMostSettleJobs && i + 1 < moves.size()) continue;
    settle_groups(shape, jobs, site_.stream);
    jobs.count = 0;
  }
  for (const BodyMove& move : moves) static_cast<const CodedRateBody&>(*move.body).drawn_.taken();
}

DeviceSpan CodedRateBody::span(size_t head, size_t which) const {
  const size_t in_codes = coded(head);
  DeviceSpan span;
  if (which == 0) {
    if (in_codes > 0) span = codes_.span(head, 0);
    span.coded = 1;
    span.rows = static_cast<int32_t>(in_codes);
  } else {
    span = dense_span(tail(), head, drawn_.counts()[head] - in_codes, site_.dim);
  }
  span.log_weight = drawn_.rule().log_weight;
  return span;
}

void CodedRateBody::attend_chunk(CausalCall& call, const std::function<RowTarget()>& piece) const {
  const float weight = call.span.log_weight + drawn_.rule().log_weight;
  const auto attend = [&](const RowTarget& rows, size_t first, size_t count) {
    call.span = causal_span(rows, count, site_.dim);
    call.span.log_weight = weight;
    call.span.head_rows_before = static_cast<int64_t>(first);
  };
  size_t waiting = 0;
  for (const size_t count : drawn_.counts()) waiting = std::max(waiting, count % group_);
  if (waiting > 0) {
    attend(tail(), 0, waiting);
    call.span.heads.rows = device_waiting();
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  }
  for (size_t first = 0; first < most_coded(); first += kPieceRows) {
    const size_t count = std::min(kPieceRows, most_coded() - first);
    const RowTarget to = piece();
    codes_.unpack(to, {first / kBlockRows, count / kBlockRows, site_.dtype});
    attend(to, first, count);
    call.span.heads.rows = device_coded();
    cuda::attend_chunk(call, site_.stream);
    call.first = false;
  }
}

// The bodies of codes know of one number of rows: what they have is what all of it takes.
void CodedRateBody::add_to(Ledger& ledger) const {
  size_t in_codes = 0;
  for (size_t g = 0; g < site_.heads; ++g) in_codes += coded(g);
  const GroupedBytes bytes = site_.codec->block_bytes(static_cast<int>(site_.dim));
  Ledger of_codes, apart;
  codes_.add_to(of_codes);
  if (apart_) apart_->add_to(apart);
  const size_t payload = in_codes / kBlockRows * (bytes.key_codes + bytes.value_codes);
  const size_t sides = in_codes / kBlockRows * (bytes.key_side + bytes.value_side);
  const size_t waiting = (drawn_.total() - in_codes) * site_.dim * 4;
  const auto all = [](const Ledger& l) { return l.payload + l.metadata + l.slack; };
  ledger.payload += payload + waiting;
  ledger.metadata += sides + device_counts_.size();
  ledger.slack += all(of_codes) - payload - sides + all(apart) + tail_.size() - waiting;
  ledger.shared += of_codes.shared;
  drawn_.add_to(ledger);
}

void CodedRateBody::archive(Archive& a, size_t tokens) {
  drawn_.archive(a, tokens);
  std::vector<size_t> in_codes, waiting;
  for (size_t g = 0; g < site_.heads; ++g) {
    in_codes.push_back(coded(g));
    waiting.push_back(drawn_.counts()[g] - coded(g));
  }
  codes_.archive_heads(a, tokens, in_codes);
  archive_rows(a, tail(), waiting, {site_.dim, site_.dtype, site_.stream});
  if (!a.loads()) return;
  std::vector<int32_t> counts(in_codes.begin(), in_codes.end());
  counts.insert(counts.end(), waiting.begin(), waiting.end());
  check(cudaMemcpyAsync(device_counts_.data(), counts.data(), device_counts_.size(),
                        cudaMemcpyHostToDevice, site_.stream),
        "state that is loaded");
  check(cudaStreamSynchronize(site_.stream), "state that is loaded");
}

}  // namespace

std::unique_ptr<DeviceBody> make_coded_rate_body(const RateRule& rule, const BodySite& site) {
  return std::make_unique<CodedRateBody>(rule, site);
}

}  // namespace pith::cuda
