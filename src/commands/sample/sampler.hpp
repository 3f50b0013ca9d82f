// A trained model that continues texts, on one process: the same pipeline as training, without backward. Two programs
// share weights and caches: one takes a whole prompt, the other one token at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/executor/cpu_executor.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {

class Sampler {
 public:
  /// Receives the logits after token `at` of a text.
  using Observer = std::function<void(int64_t at, const std::vector<float>& logits)>;

  /// Loads the weights of the checkpoint `dir`. No prompt will have more than `prompt` tokens, no text more than
  /// `text`; the model sees the last model.seq_len of either. Throws UserError (kDoesNotFit) if this host has too
  /// little free memory, and the errors of Load.
  Sampler(const Deck& deck, const std::string& dir, int64_t prompt, int64_t text);

  /// Forgets the text.
  void Restart() { cached_ = observed_ = 0; }
  /// The logits after the last token of `text`, which continues the text of the last call. Only tokens that are not in
  /// the caches are computed, unless the text is longer than model.seq_len: then the model sees its last tokens at new
  /// positions, and recomputes all of them. `observe`, if any, is called once for each token that the model sees.
  std::vector<float> Logits(const std::vector<int32_t>& text, const Observer& observe);

 private:
  struct Forward {
    Forward(const Deck& deck, int64_t tokens) : compilation(CompileSampling(deck, tokens)), tokens(tokens) {}

    Compilation compilation;
    int64_t tokens;
    Program program = MakeProgram(compilation, {});
    std::unique_ptr<CpuExecutor> executor = {};
  };
  void Load(const std::string& dir);
  /// Computes up to forward.tokens tokens of the text, from token `first` on, at `position`; returns how many.
  int64_t Run(const Forward& forward, const std::vector<int32_t>& text, int64_t first, int64_t position);
  /// The logits after token `i` of those that were computed last.
  std::vector<float> Row(const Forward& forward, int64_t i) const;

  int64_t window_, vocab_;
  int64_t cached_ = 0;    ///< tokens of the text whose keys and values are in the caches
  int64_t observed_ = 0;  ///< tokens of the text that were observed, or are no longer seen
  Forward prompt_, next_;
  HostArena arena_;
};

}  // namespace espalier
