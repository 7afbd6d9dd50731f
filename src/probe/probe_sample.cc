#include "probe/probe_sample.h"

#include <algorithm>

namespace pith {
namespace {

constexpr uint32_t kDraw = 0xE000;  // no selector draws this of a row

}  // namespace

ProbeSample::Head::Head(MemoryCounter& memory, const ProbeSampleSite& site, size_t head)
    : random(site.seed, static_cast<uint32_t>(site.layer), static_cast<uint32_t>(head)),
      rows(memory, MemoryKind::kProbe) {}

ProbeSample::ProbeSample(MemoryCounter& memory, const ProbeSampleSite& site)
    : most_(kFirst + site.rows) {
  for (size_t g = 0; g < site.kv_heads; ++g) heads_.emplace_back(memory, site, g);
}

ProbeSample::Row ProbeSample::row_of(const Head& head, size_t position) {
  Row row{0, static_cast<uint32_t>(position), kGroups};
  if (position < kFirst) return row;
  const auto words = head.random.words(position, kDraw);
  row.word = (uint64_t{words[0]} << 32) | words[1], row.group = words[2] % kGroups;
  return row;
}

void ProbeSample::find_largest(Head& head) const {
  if (head.rows.size() < most_) return;
  const auto less = [](const Row& a, const Row& b) { return a.word < b.word; };
  head.largest = static_cast<size_t>(
      std::max_element(head.rows.begin() + kFirst, head.rows.end(), less) - head.rows.begin());
}

bool ProbeSample::offer(Head& head, size_t position) const {
  const Row row = row_of(head, position);
  size_t slot = head.rows.size();
  if (position >= kFirst && slot == most_) {
    if (row.word >= head.rows[head.largest].word) return false;
    slot = head.largest;
  }
  if (slot == head.rows.size()) head.rows.resize(slot + 1);
  head.rows[slot] = row;
  find_largest(head);
  return true;
}

void ProbeSample::archive(Archive& a, size_t tokens) {
  a.need(a.loads() || tokens_ == tokens, "the probe saw other rows than the cache");
  if (a.loads()) tokens_ = tokens;
  const size_t count = std::min(tokens, most_);
  for (Head& head : heads_) {
    a.check_left(count, sizeof(uint32_t));
    if (a.loads()) head.rows.resize(count);
    for (size_t slot = 0; slot < count; ++slot) {
      uint32_t position = head.rows[slot].position;
      a.number(position, static_cast<uint32_t>(tokens - 1), "a sampled row past the tokens");
      a.need(slot < kFirst ? position == slot : position >= kFirst, "a sample without first rows");
      if (a.loads()) head.rows[slot] = row_of(head, position);
    }
    if (a.loads()) find_largest(head);
  }
}

void ProbeSample::append(size_t tokens, std::vector<Entry>& entries) {
  entries.clear();
  for (size_t g = 0; g < heads_.size(); ++g) {
    Head& head = heads_[g];
    bool any = false;
    for (size_t t = 0; t < tokens; ++t) any |= offer(head, tokens_ + t);
    for (size_t slot = 0; any && slot < head.rows.size(); ++slot)
      if (head.rows[slot].position >= tokens_)
        entries.push_back({g, slot, head.rows[slot].position - tokens_});
  }
  tokens_ += tokens;
}

double ProbeSample::drawn() const {
  const size_t rows = heads_[0].rows.size();
  return static_cast<double>(rows - std::min(rows, kFirst));
}

}  // namespace pith
