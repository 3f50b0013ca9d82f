// Sources that are mixed by weight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/data/token_source.hpp"

namespace espalier {

/// Integers in the ratio of positive weights: exact for weights of a few decimal digits ({0.7, 0.3}: 7, 3), else within
/// 2^-52 of their sum. Their sum is at most 2^53.
std::vector<int64_t> WholeWeights(const std::vector<double>& weights);

/// For each position, which source gives the sample, and which of its samples: after N positions, each source i has
/// given floor(N w_i) or ceil(N w_i), where w_i is its share.
class Turns {
 public:
  explicit Turns(std::vector<int64_t> weights);

  struct Turn {
    size_t source;
    int64_t position;  ///< number of samples that this source gave before
  };
  /// The turn at `position` >= 0. A pure function; fast if positions rise. After a jump it counts from the last
  /// multiple of the weights' sum, or from the current position.
  Turn At(int64_t position);

 private:
  struct Source {
    int64_t weight = 0;
    int64_t taken = 0;     ///< samples taken in this round
    int64_t credit = 0;    ///< weight x next_ - total_ x taken: above 0 when it has less than its share
    int64_t deadline = 0;  ///< position in the round: the next sample must be
  };
  void Restart(int64_t round);
  size_t Advance();
  void SetDeadline(Source& source) const;

  std::vector<Source> sources_;
  int64_t total_ = 0;  ///< positions of a round, after which the turns repeat
  int64_t round_ = 0, next_ = 0;
};

/// A blend: takes samples of the sources in turns; each source has its own order and repeats by itself. Sample k <
/// samples() is the k-th of all sources together.
std::unique_ptr<TokenSource> MakeBlend(std::vector<std::unique_ptr<TokenSource>> sources,
                                       std::vector<std::string> names, const std::vector<double>& weights);

}  // namespace espalier
