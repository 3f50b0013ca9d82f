// The states of a program (weights and moments) as checkpoints know them.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/executor/executor.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {

/// The parameter's name, given the name of its weights.
inline std::string ParameterName(std::string_view weights) {
  return std::string(weights.substr(kParameterPrefix.size()));
}

/// Finds parameters by name, in a compilation that outlives it.
class ParameterIndex {
 public:
  explicit ParameterIndex(const Compilation& compilation);
  /// Index in Compilation::parameters of the parameter to which `state` belongs (itself or a moment).
  size_t Of(std::string_view state) const;

 private:
  std::unordered_map<std::string_view, size_t> by_name_;
};

/// Every state of every stage, in graph order: the same list on all ranks.
std::vector<StateTensor> StateTensors(const Compilation& compilation);

/// The parameters of a deck's model as checkpoints hold them: whole, each stored tensor once.
std::vector<StateTensor> ParameterTensors(const Deck& deck);

/// This rank's shards of `tensors`.
std::vector<LocalTensor> LocalTensors(const std::vector<StateTensor>& tensors, const Executor& executor,
                                      const Coordinate& coordinate);

}  // namespace espalier
