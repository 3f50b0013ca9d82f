// The next uses after an instruction, found in a walk over a program from its last instruction to its first.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace espalier {

/// The reductions of a lane. A layer may have several: of shards, and of what all tensor-parallel ranks have.
struct NextReduction {
  int first = 0, layer = -2, after = 0;  // the first one of `layer`, and the first one of the next layer
  /// Visits reduction `i`; returns the first one of the next layer.
  int AfterLayer(int layer_of_it, int i) {
    if (layer_of_it != layer) after = first, layer = layer_of_it;
    first = i;
    return after;
  }
};

/// The next instruction that reads a value.
class NextReaders {
 public:
  explicit NextReaders(int none) : none_(none) {}
  /// Nothing reads the values `first` to `first + count - 1`, which may be new.
  void Forget(int first, int count) {
    for (std::vector<int>* list : {&any_, &of_all_rows_}) {
      list->resize(std::max(list->size(), static_cast<size_t>(first + count)));
      std::fill_n(list->begin() + first, count, none_);
    }
    of_strip_.erase(of_strip_.lower_bound({first, 0}), of_strip_.lower_bound({first + count, 0}));
  }
  /// Instruction `instruction` reads strip `strip` of the value, or all rows (-1).
  void Add(int value, int strip, int instruction) {
    any_[value] = std::min(any_[value], instruction);
    if (strip < 0)
      of_all_rows_[value] = std::min(of_all_rows_[value], instruction);
    else if (const auto [first, fresh] = of_strip_.try_emplace({value, strip}, instruction); !fresh)
      first->second = std::min(first->second, instruction);
  }
  int Of(int value, int strip) const {
    if (strip < 0) return any_[value];
    const auto found = of_strip_.find({value, strip});
    return found == of_strip_.end() ? of_all_rows_[value] : std::min(found->second, of_all_rows_[value]);
  }

 private:
  int none_;
  std::vector<int> any_, of_all_rows_;  // by value
  std::map<std::pair<int, int>, int> of_strip_;
};

}  // namespace espalier
