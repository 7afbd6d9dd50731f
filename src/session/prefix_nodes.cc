#include "session/prefix_nodes.h"

#include <algorithm>
#include <utility>

namespace pith {

size_t PrefixNode::shared(std::span<const int32_t> tokens) const {
  const auto differs = std::ranges::mismatch(edge_, tokens);
  return static_cast<size_t>(differs.in1 - edge_.begin());
}

size_t PrefixNode::walk(std::span<const int32_t> tokens,
                        const std::function<void(PrefixNode&)>& pass) {
  PrefixNode* node = this;
  for (size_t at = 0;;) {
    pass(*node);
    const auto child =
        at < tokens.size() ? node->children_.find(tokens[at]) : node->children_.end();
    if (child == node->children_.end()) return at;
    const size_t same = child->second->shared(tokens.subspan(at));
    at += same;
    if (same < child->second->edge_.size()) return at;
    node = child->second.get();
  }
}

PrefixNode& PrefixNode::split(size_t count) {
  std::unique_ptr<PrefixNode>& slot = parent_->children_.at(edge_[0]);
  auto between = std::make_unique<PrefixNode>();
  between->edge_.assign(edge_.begin(), edge_.begin() + static_cast<ptrdiff_t>(count));
  between->parent_ = parent_;
  edge_.erase(edge_.begin(), edge_.begin() + static_cast<ptrdiff_t>(count));
  parent_ = between.get();
  between->children_[edge_[0]] = std::move(slot);
  slot = std::move(between);
  return *slot;
}

PrefixNode& PrefixNode::at(std::span<const int32_t> tokens) {
  PrefixNode* node = this;
  for (size_t at = 0; at < tokens.size();) {
    const auto child = node->children_.find(tokens[at]);
    if (child == node->children_.end()) {
      auto leaf = std::make_unique<PrefixNode>();
      leaf->edge_.assign(tokens.begin() + static_cast<ptrdiff_t>(at), tokens.end());
      leaf->parent_ = node;
      return *(node->children_[tokens[at]] = std::move(leaf));
    }
    const size_t same = child->second->shared(tokens.subspan(at));
    at += same;
    node = same < child->second->edge_.size() ? &child->second->split(same) : child->second.get();
  }
  return *node;
}

void PrefixNode::join_only_child() {
  std::unique_ptr<PrefixNode> child = std::move(children_.begin()->second);
  child->edge_.insert(child->edge_.begin(), edge_.begin(), edge_.end());
  child->parent_ = parent_;
  parent_->children_.at(edge_[0]) = std::move(child);  // this node is gone
}

void PrefixNode::remove(const Snapshot* snapshot) {
  std::erase(snapshots, snapshot);
  PrefixNode* node = this;
  while (node->parent_ && node->empty()) {
    PrefixNode* parent = node->parent_;
    parent->children_.erase(parent->children_.find(node->edge_[0]));
    node = parent;
  }
  if (node->parent_ && node->snapshots.empty() && node->children_.size() == 1)
    node->join_only_child();
}

}  // namespace pith
