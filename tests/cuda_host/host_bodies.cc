// Samples by rate, halvings, and Express's streams: see host_device.h. The stream is the CPU's
// machine over the device's arrays.

#include <cmath>
#include <cstring>

#include "compress/cuda/halving.h"
#include "compress/draws.h"
#include "compress/halving.h"
#include "host_device.h"
#include "kernels/kernels.h"
#include "methods/baselines/uniform_rate_cuda.h"
#include "methods/express/express_cuda.h"

namespace pith::cuda {
namespace {

HalvingRule host_rule(const DeviceHalvingRule& device) {
  HalvingRule rule;
  rule.scale = device.scale;
  rule.value_constant = device.value_constant;
  rule.values = device.values;
  rule.centre = device.centre;
  rule.balance = device.balance;
  rule.delta = device.delta;
  rule.walk = device.walk == DeviceWalk::kPairs  ? Walk::kPairs
              : device.walk == DeviceWalk::kRows ? Walk::kRows
                                                 : Walk::kRowsExact;
  rule.side = device.coin_side ? KeptSide::kCoin : KeptSide::kSmaller;
  return rule;
}

/// A row of a stream.
struct Row {
  std::vector<float> k, v;
  float log_weight = 0;
  int64_t position = 0;
  int32_t source = 0;
};

std::vector<uint32_t> halve_rows(const DeviceHalvingRule& rule, std::span<const Row> rows,
                                 const HalvingRandom& random) {
  std::vector<float> k, v;
  std::vector<int64_t> positions;
  for (const Row& row : rows) {
    k.insert(k.end(), row.k.begin(), row.k.end());
    v.insert(v.end(), row.v.begin(), row.v.end());
    positions.push_back(row.position);
  }
  MemoryCounter memory;
  return halve(kernels_for(), memory, host_rule(rule),
               {k.data(), v.data(), positions.data(), rows.size(), rows.front().k.size()}, random)
      .kept;
}

/// One head's stream takes rows.
class Stream {
 public:
  Stream(const DeviceExpressRule& rule, const ExpressSite& site, const ExpressJob& job, int head)
      : rule_(rule),
        site_(site),
        job_(job),
        head_(head),
        random_(site.seed, job.layer, site.first_head + static_cast<uint32_t>(head)),
        state_(job.state) {
    const ExpressArrays& a = job.arrays;
    for (size_t i = 0; i < state_.rows(); ++i) {
      rows_.push_back(row_of(a.k, a.v, stored(i) * static_cast<size_t>(site.dim)));
      rows_.back().log_weight = a.log_weights[stored(i)];
      rows_.back().position = a.positions[stored(i)];
      rows_.back().source = static_cast<int32_t>(i);
    }
    held_ = static_cast<int32_t>(rows_.size());
    first_ = job.rows.position >= 0 ? job.rows.position
                                    : site.first_position + static_cast<int64_t>(state_.seen);
  }

  void take() {
    advance(state_, rule_.shape, static_cast<uint64_t>(job_.rows.count), [&](const Step& step) {
      if (step.op == Op::kHalve) return halve(step);
      if (step.op == Op::kPick) return pick(step);
      for (uint32_t i = 0; i < step.rows; ++i) rows_.push_back(next());
    });
    const ExpressArrays& a = job_.arrays;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const size_t at = stored(i) * static_cast<size_t>(site_.dim);
      for (size_t c = 0; c < rows_[i].k.size(); ++c) {
        put(site_.dtype, a.k, at + c, rows_[i].k[c]);
        put(site_.dtype, a.v, at + c, rows_[i].v[c]);
      }
      a.log_weights[stored(i)] = rows_[i].log_weight;
      a.positions[stored(i)] = rows_[i].position;
      if (a.sources) a.sources[stored(i)] = rows_[i].source;
    }
  }

 private:
  size_t stored(size_t row) const {
    return static_cast<size_t>(head_) * static_cast<size_t>(job_.arrays.capacity) + row;
  }
  Row row_of(const void* k, const void* v, size_t at) const {
    const auto dim = static_cast<size_t>(site_.dim);
    return {floats(site_.dtype, k, at, dim), floats(site_.dtype, v, at, dim)};
  }
  int64_t position(int row) const {
    const NewDeviceRows& rows = job_.rows;
    return rows.positions ? rows.positions[head_ * rows.positions_stride + row] : first_ + row;
  }
  Row next() {
    const NewDeviceRows& rows = job_.rows;
    Row row = row_of(rows.k, rows.v,
                     static_cast<size_t>(head_) * rows.head_stride +
                         static_cast<size_t>(taken_) * rows.row_stride);
    row.position = position(taken_);
    row.source = held_ + taken_++;
    return row;
  }
  float log_weight(uint64_t weight) const {
    return rule_.weight_exponent * static_cast<float>(std::log(static_cast<double>(weight)));
  }
  void pick(const Step& step) {
    uint64_t counted = step.first;
    for (uint32_t i = 0; i < step.rows; ++i) {
      Row row = next();
      const bool first = counted == 0;
      if (becomes_pick(random_, row.position, step.tag, counted + 1)) {
        if (!first) rows_.pop_back();
        rows_.push_back(std::move(row));
      }
      rows_.back().log_weight = log_weight(++counted);
      if (counted == step.size) counted = 0;
    }
  }
  void halve(const Step& step) {
    const std::span tail = std::span(rows_).subspan(step.first, step.rows);
    const auto kept = halve_rows(rule_.halving, tail, {random_, step.tag});
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] != i) tail[i] = tail[kept[i]];
      tail[i].log_weight = log_weight(step.weight);
    }
    rows_.resize(step.first + kept.size());
  }

  const DeviceExpressRule& rule_;
  const ExpressSite& site_;
  const ExpressJob& job_;
  int head_, taken_ = 0;
  Philox random_;
  ExpressState state_;
  std::vector<Row> rows_;
  int32_t held_ = 0;
  int64_t first_ = 0;
};

}  // namespace

void express_take(const DeviceExpressRule& rule, const ExpressSite& site, const ExpressJobs& jobs,
                  cudaStream_t) {
  for (int j = 0; j < jobs.count; ++j)
    for (int h = 0; h < site.heads; ++h) Stream(rule, site, jobs.job[j], h).take();
}

void halve_batch(const DeviceHalvingRule& rule, const HalvingCall& call, cudaStream_t) {
  const auto dim = static_cast<size_t>(call.dim);
  for (int h = 0; h < call.heads; ++h) {
    std::vector<Row> rows;
    for (int i = 0; i < call.size; ++i) {
      const size_t at = static_cast<size_t>(h) * call.head_stride + static_cast<size_t>(i) * dim;
      rows.push_back({floats(call.dtype, call.k, at, dim), floats(call.dtype, call.v, at, dim)});
      rows.back().position = call.positions
                                 ? call.positions[static_cast<size_t>(h) * call.positions_stride +
                                                  static_cast<size_t>(i)]
                                 : call.first_position + i;
    }
    const Philox random(call.seed, call.layer, call.first_head + static_cast<uint32_t>(h));
    std::ranges::copy(halve_rows(rule, rows, {random, call.tag}),
                      call.kept + static_cast<size_t>(h) * call.kept_stride);
  }
}

void take_by_rate(const RateDraw& draw, const RateJobs& jobs, cudaStream_t) {
  for (int j = 0; j < jobs.count; ++j) {
    const RateJob& job = jobs.job[j];
    const RateSample& to = job.sample;
    const size_t stride = static_cast<size_t>(to.capacity) * static_cast<size_t>(draw.dim);
    for (int h = 0; h < draw.heads; ++h) {
      const Philox random(draw.seed, job.layer, job.first_head + static_cast<uint32_t>(h));
      for (int i = 0; i < job.rows; ++i) {
        const int64_t position =
            job.positions ? job.positions[h * job.positions_stride + i] : job.position + i;
        if (!stays_by_rate(random, position, draw.rate)) continue;
        const int place = to.counts[h]++, row = place - (to.coded ? to.coded[h] : 0);
        to.positions[h * to.positions_stride + place] = static_cast<int32_t>(position);
        copy_row(row_at(to.k, stride, h, row, draw.dim),
                 row_at(job.k, job.head_stride, h, i, draw.dim), draw.dim);
        copy_row(row_at(to.v, stride, h, row, draw.dim),
                 row_at(job.v, job.head_stride, h, i, draw.dim), draw.dim);
      }
    }
  }
}

void settle_groups(const SettleShape& shape, const SettleJobs& jobs, cudaStream_t) {
  const int dim = shape.dim, group = shape.group;
  for (int j = 0; j < jobs.count; ++j) {
    const SettleJob& job = jobs.job[j];
    for (int h = 0; h < shape.heads; ++h) {
      const int before = job.coded[h], rows = job.counts[h] - before, left = rows % group;
      const auto move = [&](void* to, const void* from, size_t bytes) {
        const size_t first =
            static_cast<size_t>(h) * job.to.stride + static_cast<size_t>(before / kBlockRows);
        std::memcpy(
            static_cast<char*>(to) + first * bytes,
            static_cast<const char*>(from) + static_cast<size_t>(h) * job.from.stride * bytes,
            static_cast<size_t>((rows - left) / kBlockRows) * bytes);
      };
      if (rows > left) {
        move(job.to.key_codes, job.from.key_codes, shape.bytes.key_codes);
        move(job.to.value_codes, job.from.value_codes, shape.bytes.value_codes);
      }
      for (int i = 0; i < left; ++i) {
        copy_row(row_at(job.tail.k, job.tail.head_stride, h, i, dim),
                 row_at(job.rows.k, job.rows.head_stride, h, rows - left + i, dim), dim);
        copy_row(row_at(job.tail.v, job.tail.head_stride, h, i, dim),
                 row_at(job.rows.v, job.rows.head_stride, h, rows - left + i, dim), dim);
      }
      job.coded[h] = before + rows - left;
      job.waiting[h] = left;
    }
  }
}

}  // namespace pith::cuda
