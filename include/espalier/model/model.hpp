// Deck -> logical graph: whole tensors, no ranks. A family is one file that knows ops and logical dim names only.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/graph/graph.hpp"
#include "espalier/model/stored_part.hpp"

namespace espalier {

/// The purpose of a graph. Evaluation, proof, scoring and sampling are the forward half of training: a proof (that a
/// checkpoint was loaded correctly) evaluates one microbatch. Scoring ends at the terms of each token's loss. Sampling
/// ends at the logits; its attention sees the keys and values of all tokens so far, which stay in caches. `kCopies`
/// casts master weights to the compute type; training, evaluation and proof read these copies. `kGradients` is forward
/// and backward of one microbatch: each rank keeps its own part of the gradients, unreduced, and nothing is updated.
enum class Purpose : uint8_t { kTrain, kEvaluate, kProof, kScore, kSample, kCopies, kGradients };

/// Programs with forward and backward, whose forward is that of training: with dropout and the losses of routers.
inline bool HasBackward(Purpose purpose) { return purpose == Purpose::kTrain || purpose == Purpose::kGradients; }

/// Programs of a model that is not trained any further: the weights themselves have the compute type, without masters.
inline bool KeepsComputeType(Purpose purpose) { return purpose == Purpose::kScore || purpose == Purpose::kSample; }

/// The layers of each chunk: chunk_of_layer[l] for l = 0 (embedding), 1..L, L+1 (head). With layers for further tokens
/// these are L+1..L+D and the head is L+D+1, all of them with the head.
struct Split {
  std::vector<int> chunk_of_layer;
  int chunks = 1;
  /// The number of transformer layers of each chunk.
  std::vector<int64_t> LayersOfChunks() const;
};

/// The split of a deck: `pipeline.split` (layers per chunk), or balanced by FLOPs per token, including the head's. The
/// embedding is in the first chunk, the head in the last; every chunk has at least one layer.
Split SplitLayers(const Deck& deck, int chunks);

/// How a weight is initialised.
struct ParameterInit {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal } kind = Kind::kNormal;
  double std = 0;
};

struct Model {
  Graph graph;  ///< forward; states "parameters/<name>" in model order
  /// Hugging Face's names, in model order; a part of a stored tensor has its own suffix: "...weight[q]".
  std::vector<std::string> parameters;
  std::vector<ParameterInit> inits;  ///< by parameter
  std::vector<StoredPart> stored;    ///< by parameter: its tensor in checkpoints and in the initialization
};

/// Builds the forward graph of one microbatch of `batch` sequences (all data-parallel ranks together:
/// BatchShape::rows). Results: "loss", "count" (train, evaluate, proof), "logits_max", "logits_sum" and "logits_target"
/// of each token (score), or "logits" (sample). `tokens` of each sequence at a time: model.seq_len, or fewer in
/// sampling.
Model BuildModel(const Deck& deck, const Split& split, int64_t batch, Purpose purpose, int64_t tokens);
inline Model BuildModel(const Deck& deck, const Split& split, int64_t batch, Purpose purpose) {
  return BuildModel(deck, split, batch, purpose, deck.model.seq_len);
}

/// Number of parameters; tied tensors count once.
int64_t ParameterCount(const Model& model);

}  // namespace espalier
