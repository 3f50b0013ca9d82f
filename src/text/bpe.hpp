// Byte-pair encoding: the model "BPE" of tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace espalier {

/// Maps pairs of ids to ids: a hash table of fixed size, open addressing.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  ///< < 0: this pair does not merge
    int32_t id = -1;    ///< id of the merged token
  };

  explicit MergeTable(size_t count);
  /// The last value set for a pair counts.
  void Set(int32_t left, int32_t right, Merge merge);
  Merge Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    Merge merge;
  };
  size_t Place(uint64_t pair) const;

  std::vector<Slot> slots_;
};

/// Lets lookups take a string_view.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

/// The parts of the model. `ids` has tokens as they occur in words.
struct BpeModel {
  TokenIds ids;
  MergeTable merges{0};
  bool bytes = false;          ///< words are sequences of bytes; otherwise of characters
  bool ignore_merges = false;  ///< a word that is a token needs no merges
  bool byte_fallback = false;  ///< a character without a token is encoded as tokens of bytes, such as <0x0A>
  bool fuse_unknown = false;   ///< neighbouring unknown characters are one unknown token
  std::optional<int32_t> unknown;
  std::string prefix, suffix;        ///< prefix of symbols that continue a word, and suffix of its last one
  std::vector<int32_t> byte_tokens;  ///< with byte_fallback: ids of <0x00> to <0xFF>, -1 for absent ones
};

/// Encodes words for one thread: has room for intermediate results, and a cache of words.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeModel& model);

  /// Appends the ids of a word, in O(n log n). A character without token is dropped if there is no unknown token.
  void Encode(std::string_view word, std::vector<int32_t>& ids);

 private:
  struct Symbol {
    int32_t id;
    int32_t previous, next;  ///< -1: none
    bool merged = false;     ///< merged into the symbol before
  };
  struct Candidate {
    int32_t rank, position, id;
    /// The smallest rank first, then the leftmost.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  struct CachedWord {
    std::string word;
    std::vector<int32_t> ids;
  };

  void Symbols(std::string_view word);
  void AddSymbol(int32_t id);
  void AddUnknown(bool& pending);
  bool AddBytes(std::string_view symbol);
  void AddCandidate(int32_t left, int32_t right);
  void Merge();
  void EncodeNew(std::string_view word, std::vector<int32_t>& ids);

  const BpeModel& model_;
  std::vector<int32_t> byte_ids_;  ///< with model.bytes: ids of single bytes, -1 for absent ones
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;  ///< a heap
  std::string spelling_;
  std::vector<CachedWord> cache_;
};

}  // namespace espalier
