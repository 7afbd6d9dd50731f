#include "cache/probe_sample.h"

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

bool ProbeSample::offer(Head& head, size_t position) const {
  Row row{0, static_cast<uint32_t>(position), kGroups};
  size_t slot = head.rows.size();
  if (position >= kFirst) {
    const auto words = head.random.words(position, kDraw);
    row.word = (uint64_t{words[0]} << 32) | words[1], row.group = words[2] % kGroups;
    if (slot == most_) {
      if (row.word >= head.rows[head.largest].word) return false;
      slot = head.largest;
    }
  }
  if (slot == head.rows.size()) head.rows.resize(slot + 1);
  head.rows[slot] = row;
  if (head.rows.size() < most_) return true;
  const auto less = [](const Row& a, const Row& b) { return a.word < b.word; };
  head.largest = static_cast<size_t>(
      std::max_element(head.rows.begin() + kFirst, head.rows.end(), less) - head.rows.begin());
  return true;
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
