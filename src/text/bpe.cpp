#include "text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "espalier/text/utf8.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr size_t kCachedWords = size_t{1} << 15, kMaxCachedBytes = 64;

uint64_t Pair(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// Mixes all bits (the finalizer of MurmurHash3).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

MergeTable::MergeTable(size_t count) : slots_(std::bit_ceil(2 * count + 1)) {}

size_t MergeTable::Place(uint64_t pair) const {
  size_t at = Mix(pair) & (slots_.size() - 1);
  while (slots_[at].merge.rank >= 0 && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  slots_[Place(Pair(left, right))] = {Pair(left, right), merge};
}

MergeTable::Merge MergeTable::Find(int32_t left, int32_t right) const { return slots_[Place(Pair(left, right))].merge; }

BpeEncoder::BpeEncoder(const BpeModel& model) : model_(model), cache_(kCachedWords) {
  if (!model.bytes) return;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = model.ids.find(std::string(1, static_cast<char>(byte)));
    byte_ids_.push_back(found == model.ids.end() ? -1 : found->second);
  }
}

void BpeEncoder::AddSymbol(int32_t id) {
  const auto at = static_cast<int32_t>(symbols_.size());
  if (at > 0) symbols_.back().next = at;
  symbols_.push_back({id, at - 1, -1});
}

/// Unknown characters are added when the next known one comes. `pending`: one is waiting.
void BpeEncoder::AddUnknown(bool& pending) {
  if (!model_.unknown) return;
  if (pending && !model_.fuse_unknown) AddSymbol(*model_.unknown);
  pending = true;
}

bool BpeEncoder::AddBytes(std::string_view symbol) {
  const auto token = [&](char c) { return model_.byte_tokens[static_cast<unsigned char>(c)]; };
  if (!std::ranges::all_of(symbol, [&](char c) { return token(c) >= 0; })) return false;
  for (char c : symbol) AddSymbol(token(c));
  return true;
}

/// The characters, or bytes, of a word as tokens.
void BpeEncoder::Symbols(std::string_view word) {
  symbols_.clear();
  bool unknown = false;  // an unknown character is waiting to be added
  for (size_t at = 0; at < word.size();) {
    const size_t bytes = model_.bytes ? 1 : CharacterBytes(word, at);
    int32_t id = -1;
    const bool plain = model_.prefix.empty() && model_.suffix.empty();
    if (model_.bytes && plain) {
      id = byte_ids_[static_cast<unsigned char>(word[at])];
    } else {
      spelling_.assign(at > 0 ? model_.prefix : "").append(word.substr(at, bytes));
      if (at + bytes == word.size()) spelling_ += model_.suffix;
      const auto found = model_.ids.find(spelling_);
      if (found != model_.ids.end()) id = found->second;
    }
    at += bytes;
    if (id >= 0) {
      if (std::exchange(unknown, false)) AddSymbol(*model_.unknown);
      AddSymbol(id);
    } else if (!model_.byte_fallback || !AddBytes(spelling_)) {
      AddUnknown(unknown);
    }
  }
  if (unknown) AddSymbol(*model_.unknown);
}

void BpeEncoder::AddCandidate(int32_t left, int32_t right) {
  const MergeTable::Merge merge =
      model_.merges.Find(symbols_[static_cast<size_t>(left)].id, symbols_[static_cast<size_t>(right)].id);
  if (merge.rank < 0) return;
  candidates_.push_back({merge.rank, left, merge.id});
  std::push_heap(candidates_.begin(), candidates_.end());
}

/// Merges neighbours, the pair of smallest rank first, as Hugging Face does. A candidate whose pair has changed still
/// counts if the new pair merges to the same token.
void BpeEncoder::Merge() {
  candidates_.clear();
  for (size_t at = 0; at + 1 < symbols_.size(); ++at)
    AddCandidate(static_cast<int32_t>(at), static_cast<int32_t>(at + 1));
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end());
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Symbol& left = symbols_[static_cast<size_t>(best.position)];
    if (left.merged || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<size_t>(left.next)];
    const MergeTable::Merge merge = model_.merges.Find(left.id, right.id);
    if (merge.rank < 0 || merge.id != best.id) continue;
    left.id = best.id;
    left.next = right.next;
    right.merged = true;
    if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = best.position;
    if (left.previous >= 0) AddCandidate(left.previous, best.position);
    if (left.next >= 0) AddCandidate(best.position, left.next);
  }
}

void BpeEncoder::EncodeNew(std::string_view word, std::vector<int32_t>& ids) {
  const auto whole = model_.ignore_merges ? model_.ids.find(word) : model_.ids.end();
  if (whole != model_.ids.end()) return ids.push_back(whole->second);
  Symbols(word);
  Merge();
  for (const Symbol& symbol : symbols_)
    if (!symbol.merged) ids.push_back(symbol.id);
}

void BpeEncoder::Encode(std::string_view word, std::vector<int32_t>& ids) {
  CHECK(word.size() < size_t{1} << 31, "a word of {} bytes", word.size());
  if (word.size() > kMaxCachedBytes) return EncodeNew(word, ids);
  CachedWord& cached = cache_[Mix(TextHash()(word)) % kCachedWords];
  if (cached.word != word) {
    cached.word.clear();  // stays empty in case of an exception
    cached.ids.clear();
    EncodeNew(word, cached.ids);
    cached.word = word;
  }
  ids.insert(ids.end(), cached.ids.begin(), cached.ids.end());
}

}  // namespace espalier
