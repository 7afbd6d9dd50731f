#pragma once
// Token sequences that share their beginnings, each held once: a radix tree. It compares tokens
// themselves, so that no two texts are ever taken for each other.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace pith {

struct Snapshot;

class PrefixNode {
 public:
  PrefixNode() = default;
  PrefixNode(const PrefixNode&) = delete;
  PrefixNode& operator=(const PrefixNode&) = delete;

  /// The node of exactly these tokens, made if it is not there.
  PrefixNode& at(std::span<const int32_t> tokens);
  /// Calls `pass` for each node whose tokens `tokens` begins with, shortest first; how many of the
  /// tokens are in the tree.
  size_t walk(std::span<const int32_t> tokens, const std::function<void(PrefixNode&)>& pass);
  /// Takes a snapshot out, and what held nothing else; this node may be gone afterwards.
  void remove(const Snapshot* snapshot);
  bool empty() const { return snapshots.empty() && children_.empty(); }

  std::vector<Snapshot*> snapshots;

 private:
  using Children = std::map<int32_t, std::unique_ptr<PrefixNode>>;  // by their first token

  /// How many of the tokens at the front are this node's edge's.
  size_t shared(std::span<const int32_t> tokens) const;
  /// Cuts the edge behind `count` tokens; the new node between.
  PrefixNode& split(size_t count);
  void join_only_child();

  std::vector<int32_t> edge_;  // from the parent to here
  PrefixNode* parent_ = nullptr;
  Children children_;
};

}  // namespace pith
