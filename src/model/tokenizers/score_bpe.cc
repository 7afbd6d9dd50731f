#include "model/tokenizers/score_bpe.h"

#include <algorithm>

#include "core/utf8.h"

namespace pith {

struct ScoreBpe::Work {
  std::string_view text;
  std::vector<Symbol> symbols;  // those that stand for themselves, and what they were made of
  std::vector<Candidate> heap;

  static bool later(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.begin > b.begin;
  }
};

void ScoreBpe::reserve(size_t tokens, size_t bytes) {
  table_.reserve(tokens, bytes);
  pieces_.reserve(tokens);
}

bool ScoreBpe::add(std::string_view text, int32_t id, float score, Kind kind) {
  if (!table_.add(text).second) return false;
  pieces_.push_back({id, score, kind});
  if (kind != Kind::kApart) longest_ = std::max(longest_, text.size());
  return true;
}

std::optional<int32_t> ScoreBpe::find(std::string_view text) const {
  const int32_t found = table_.find(text);
  return found < 0 ? std::nullopt : std::optional(pieces_[static_cast<size_t>(found)].id);
}

const ScoreBpe::Piece* ScoreBpe::piece_of(std::string_view text) const {
  if (text.size() > longest_) return nullptr;
  const int32_t found = table_.find(text);
  if (found < 0) return nullptr;
  const Piece& piece = pieces_[static_cast<size_t>(found)];
  return piece.kind == Kind::kApart ? nullptr : &piece;
}

/// Puts the symbol and its right neighbour among the candidates, if they make a piece.
void ScoreBpe::offer(Work& work, int32_t left) const {
  if (left < 0 || work.symbols[left].next < 0) return;
  const Symbol& a = work.symbols[left];
  const Symbol& b = work.symbols[a.next];
  const Piece* piece = piece_of(work.text.substr(a.begin, b.end - a.begin));
  if (piece == nullptr) return;
  work.heap.push_back({piece->score, left, a.next, a.begin, piece});
  std::push_heap(work.heap.begin(), work.heap.end(), Work::later);
}

void ScoreBpe::merge(Work& work, const Candidate& pair) const {
  Symbol& left = work.symbols[pair.left];
  Symbol& right = work.symbols[pair.right];
  if (left.merged || right.merged) return;  // with another neighbour, meanwhile
  left.merged = right.merged = true;
  const auto made = static_cast<int32_t>(work.symbols.size());
  const int32_t previous = left.previous, next = right.next;
  work.symbols.push_back(
      {left.begin, right.end, pair.piece, pair.left, pair.right, previous, next});
  if (previous >= 0) work.symbols[previous].next = made;
  if (next >= 0) work.symbols[next].previous = made;
  offer(work, previous);
  offer(work, made);
}

void ScoreBpe::encode(std::string_view text, std::vector<int32_t>& out) const {
  Work work{.text = text, .symbols = {}, .heap = {}};
  for (size_t at = 0; at < text.size();) {
    const size_t end = at + utf8_step(text.substr(at)).length;
    const auto index = static_cast<int32_t>(work.symbols.size());
    if (index > 0) work.symbols.back().next = index;
    work.symbols.push_back({at, end, piece_of(text.substr(at, end - at)), -1, -1, index - 1, -1});
    at = end;
  }
  const auto characters = static_cast<int32_t>(work.symbols.size());
  for (int32_t i = 0; i < characters; ++i) offer(work, i);
  while (!work.heap.empty()) {
    const Candidate best = work.heap.front();
    std::pop_heap(work.heap.begin(), work.heap.end(), Work::later);
    work.heap.pop_back();
    merge(work, best);
  }
  // The first symbol that is in no other stands at the text's beginning: walk up to it.
  if (work.symbols.empty()) return;
  int32_t first = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(work.symbols.size()); ++i) {
    if (work.symbols[i].begin == 0 && !work.symbols[i].merged) first = i;
  }
  for (int32_t i = first; i >= 0; i = work.symbols[i].next) emit(work, i, out);
}

void ScoreBpe::emit(const Work& work, int32_t symbol, std::vector<int32_t>& out) const {
  std::vector<int32_t> waiting{symbol};
  while (!waiting.empty()) {
    const Symbol& s = work.symbols[waiting.back()];
    waiting.pop_back();
    if (s.piece == nullptr) {
      emit_bytes(work.text.substr(s.begin, s.end - s.begin), out);
    } else if (s.piece->kind == Kind::kUnused && s.left >= 0) {
      waiting.push_back(s.right);
      waiting.push_back(s.left);
    } else {
      out.push_back(s.piece->id);
    }
  }
}

void ScoreBpe::emit_bytes(std::string_view bytes, std::vector<int32_t>& out) const {
  const auto id = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(bytes.begin(), bytes.end(), [&](char b) { return id(b) < 0; })) {
    if (unknown_ >= 0) out.push_back(unknown_);
    return;
  }
  for (const char byte : bytes) out.push_back(id(byte));
}

}  // namespace pith
