// Numbers for types and ops: equal ones have equal numbers. All layers of a model have the same few, so what follows
// from an op's kind, attributes and types is found once per number.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

/// A hash of all parts of a type.
size_t HashOf(const Type& type);

/// Assigns numbers, from 0, in the order of first sight.
class Signatures {
 public:
  /// The graph that the calls below are about, until it changes.
  void Read(const Graph& graph);
  /// Number of the type of value `id`.
  int OfValue(int id);
  /// Number of the kind, the attributes and the types of all inputs and outputs of an op.
  int Of(const Op& op);

 private:
  struct Hash {
    size_t operator()(const Type& type) const { return HashOf(type); }
  };
  std::unordered_map<Type, int, Hash> types_;
  std::unordered_map<std::string, int> ops_;
  const Graph* graph_ = nullptr;
  std::vector<int> of_value_;  // -1: not known yet
  std::string key_;            // scratch
};

}  // namespace espalier
