// The part that all families share: embedding, layers and head in this order, the initial distributions of the weights,
// and the head itself. A family derives from it and writes its own embedding, layer and norm.
#pragma once

#include "builder.hpp"
#include "families.hpp"

namespace espalier {

class TransformerWriter {
 public:
  TransformerWriter(const Deck& deck, const Split& split, const Forward& forward);
  virtual ~TransformerWriter() = default;

  Model Build();

 protected:
  static constexpr const char* kStream = "batch,stream,embed";  ///< layout of the residual stream

  /// Token ids to the residual stream; sets embedding_.
  virtual int Embed() = 0;
  /// Layer `l` (1..L): residual stream to residual stream.
  virtual int Layer(int x, int l) = 0;
  /// The norm before the head; with `depth` > 0 that of a layer for further tokens.
  virtual int FinalNorm(int x, int depth) = 0;
  /// The input of the layer for further tokens at `depth`, from the normalised output of the depth before.
  virtual int FurtherInput(int normed, int depth);

  /// x with elements dropped at `rate` (0: x itself); `name` names the result and its random numbers.
  int Drop(int x, double rate, const std::string& name);
  /// Causal attention of layer `l`; its outputs are `names`: o and the log of the softmax denominators. A layer with a
  /// sliding window, and samples of several documents, see less.
  int CausalAttention(int q, int k, int v, int l, std::vector<std::string> names);
  /// x times a weight, under the layout `out`. precision.bf16_matmuls calls the weight `name`.
  int WeightMatmul(int x, int w, const std::string& name, const std::string& product, const char* spec,
                   const std::string& out);
  /// Marks a matmul of this weight if it is to be in fp8.
  void MarkFp8(const std::string& weight, Attributes& attributes) const;
  /// Input of the positions of the sequence's tokens.
  int SequencePositions();
  int positions() const { return positions_; }
  /// Input of learned positions: of the sequence, or of each document in it.
  int Positions();
  /// The factor of scores and the window of layer l, where it has them.
  void AddScoreRule(int l, Attributes& attributes) const;
  bool Samples() const { return forward_.purpose == Purpose::kSample; }
  /// In sampling: the cache `name` of layer l, with x of the tokens at hand written to their positions.
  int Cached(int x, int l, std::string_view name);

  const Deck::Model& m_;
  const Deck::Parallel parallel_;
  const Deck::Dropout dropout_;  ///< all 0 but in training
  const bool isolate_documents_;
  const Forward forward_;
  Builder b_;
  const ParameterInit normal_;  ///< of most weights
  const ParameterInit output_;  ///< of the two matmuls per layer that write to the residual stream
  int embedding_ = -1;

 private:
  /// Layers for further tokens: model.mtp_layers where they are trained, or where their weights have places.
  int Depths() const;
  void Head(const std::vector<int>& normed);
  /// The inputs of dropout, as the last of `inputs`, and its attributes; `tokens` is the input of token numbers.
  void AddDropout(double rate, const std::string& name, int tokens, std::vector<int>& inputs, Attributes& attributes);
  /// An input of the numbers of tokens, made when it is first asked for.
  int Numbers(int& input, std::string_view name, const char* layout);

  const int64_t seed_;
  const Deck::Precision& precision_;
  const double z_loss_, mtp_weight_;
  const std::string_view backward_;
  int positions_ = -1;                            ///< SequencePositions, once it was called
  int stream_numbers_ = -1, query_numbers_ = -1;  ///< inputs i32[b,s]: numbers of tokens, for dropout
  int documents_ = -1;  ///< input i32[b,s]: the position at which each token's document begins
};

}  // namespace espalier
