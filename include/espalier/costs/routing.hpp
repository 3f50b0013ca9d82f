// How many tokens each expert of a layer receives: an assumption of predictions. No program and no memory depends on
// it, only times of kernels on rows of experts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/graph/type.hpp"

namespace espalier {

class Routing {
 public:
  /// Every expert receives equally many tokens.
  Routing() = default;
  /// `loads[layer][expert]`, layers from 1 on (loads[0] is empty): tokens of each expert, in any unit; empty for layers
  /// without experts. `text` describes it in output.
  Routing(std::vector<std::vector<double>> loads, std::string text);

  bool IsBalanced() const { return loads_.empty(); }
  /// "balanced", "skew=0.5 (...)".
  const std::string& text() const { return text_; }

  /// Rows of a rank with these experts of a layer, relative to balanced routing.
  double Load(int layer, Range experts) const;
  /// The largest Load of ranks with so many experts each, of each layer with experts.
  std::vector<double> LargestLoads(int64_t experts) const;

  /// The same for a program of one rank and few layers, for which the other ranks wait: Load is the mean of
  /// LargestLoads, whatever the layer.
  Routing OfTheFullestRank() const;

 private:
  std::vector<std::vector<double>> loads_;  ///< relative to the mean of their layer
  std::string text_ = "balanced";
  bool fullest_ = false;
};

/// The n-th most popular expert of a layer receives tokens in proportion to n^-exponent (Zipf), at most every token.
/// Which expert has which place is drawn for each layer by `seed`.
Routing SkewedRouting(const Deck::Model& model, double exponent, int64_t seed);

}  // namespace espalier
