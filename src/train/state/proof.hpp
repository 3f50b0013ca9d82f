// The proof that loaded weights are the saved ones: the loss of one fixed microbatch, computed at the save and again
// after the load. Its tokens depend only on vocabulary and sequence length. All its sequences are equal, so that every
// rank's weights take part and the loss does not depend on the number of ranks.
#pragma once

#include <string>

#include "train/programs.hpp"

namespace espalier {

/// `samples` samples of tokens drawn uniformly from the vocabulary of a model by `key`.
class FixedTokens final : public TokenSource {
 public:
  FixedTokens(const Deck::Model& model, int64_t samples, uint64_t key)
      : seq_len_(model.seq_len), vocab_(model.vocab), samples_(samples), key_(key) {}
  int64_t samples() const override { return samples_; }
  int64_t tokens() const override { return samples_ * (seq_len_ + 1); }
  int64_t seq_len() const override { return seq_len_; }
  void Read(int64_t index, Sample& out) override;

 private:
  int64_t seq_len_, vocab_, samples_;
  uint64_t key_;
};

/// Checksum of everything that may change the last bits of a loss on any rank and is constant within a run. On rank 0;
/// 0 elsewhere. Collective.
uint32_t ConditionsOf(const Deck& deck, const Programs& programs, World& world);

/// The proof of the current weights, computed under `conditions`. Collective.
Proof MakeProof(const Deck& deck, const Programs& programs, uint32_t conditions);

/// Why `now`, computed from a loaded checkpoint, contradicts the saved proof; empty if it agrees: bitwise under equal
/// conditions, otherwise within 1e-5 of the loss, or 1e-2 if one of them was computed in bf16.
std::string ProofError(const Proof& saved, const Proof& now);

}  // namespace espalier
