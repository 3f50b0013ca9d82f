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
  NextReaders(size_t values, int none) : any_(values, none), of_all_rows_(values, none) {}
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
  std::vector<int> any_, of_all_rows_;  // by value
  std::map<std::pair<int, int>, int> of_strip_;
};

}  // namespace espalier
