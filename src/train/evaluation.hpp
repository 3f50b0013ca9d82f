// Loss on the validation data.
#pragma once

#include <memory>

#include "espalier/data/token_source.hpp"
#include "train/programs.hpp"

namespace espalier {

class Evaluation {
 public:
  /// `programs` must have an evaluation program, and outlive this.
  Evaluation(const Deck& deck, const Programs& programs, World& world, std::unique_ptr<TokenSource> source);

  /// Mean loss over the targets of the first validate_sequences samples (0: all); rows past the end do not count.
  /// Collective; throws AgreedError if a rank cannot read its samples.
  double Loss() const;

 private:
  void MaskRows(Microbatch& microbatch, int64_t index, int64_t rows) const;
  int64_t CountTargets(const Batch& batch) const;

  const Programs& programs_;
  World& world_;
  std::unique_ptr<TokenSource> source_;
  int64_t wanted_;  ///< sequences
};

}  // namespace espalier
