// The interface that model families use: values by id, ops by kind, logical dims where the layout matters.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "espalier/model/model.hpp"
#include "espalier/ops/op.hpp"

namespace espalier {

class Builder {
 public:
  Builder(const Split& split, Dtype compute, Purpose purpose) : split_(split), compute_(compute), purpose_(purpose) {}

  /// Everything after this call belongs to this layer and its chunk.
  void Layer(int layer) { layer_ = layer; }

  /// An input of the program: once per microbatch, or once per step on every stage.
  int MicrobatchInput(const std::string& name, Shape shape, std::string layout);
  /// Once per microbatch, on every stage.
  int SharedMicrobatchInput(const std::string& name, Shape shape, std::string layout);
  int StepInput(const std::string& name, Shape shape, std::string layout);
  /// The number of the step, f32[].
  int StepNumber();

  /// A weight in the compute type: the fp32 master "parameters/<name>" itself, or its cast, computed once per step. In
  /// scoring and sampling the state itself has the compute type.
  int Parameter(const std::string& name, Shape shape, std::string layout, ParameterInit init);
  /// The same for a part of a larger stored tensor; `word` distinguishes it from the other parts.
  int Parameter(const std::string& word, const StoredPart& stored, Shape shape, std::string layout, ParameterInit init);

  /// A state of the model in fp32 that no gradient trains, 0 at first. If training changes it, a rule of its own does
  /// (src/passes/optimize.cpp).
  int Untrained(const std::string& name, Shape shape, std::string layout);

  /// A cache of `length` tokens for `x` [batch, seq, features].
  int Cache(const std::string& name, int x, int64_t length);
  /// Writes `x` into the cache, at `positions`, and returns the cache.
  int WriteCache(int cache, int x, int positions);

  /// Emits a forward op, names its outputs and returns the first, which gets the layout.
  int Emit(OpKind kind, std::vector<int> inputs, std::vector<std::string> names, Attributes attributes = {},
           std::string layout = "");
  /// The last extent of `value`.
  int64_t WidthOf(int value) const { return model_.graph.value(value).type.shape.back(); }
  /// Another output of the op that makes `value`.
  int Output(int value, size_t output) const { return OutputsOf(value).at(output); }
  /// Emit in role P: it needs step values only.
  int Prepare(OpKind kind, std::vector<int> inputs, const std::string& name, Attributes attributes = {});
  /// The end of every family: logits [batch, seq, vocab] are the result for sampling; for scoring, what the loss of
  /// each token is made of; else the sum of token losses and their count. With z_loss > 0 also the sum of the z-loss,
  /// in training: what evaluation reports is the cross-entropy alone.
  void Loss(int logits, double z_loss);
  /// The loss of depth `depth` (espalier/model/further_tokens.hpp), which counts `weight` times in what is
  /// differentiated. It is no result.
  void FurtherLoss(int logits, int depth, double weight);
  /// Marks the producer of `value` as cheap and returns `value`. Selective recompute computes cheap values again in
  /// backward. Cheap are ops whose outputs need much memory for little work: norms, activations, and the inputs of
  /// attention (q, k and v with their positions); never attention itself, nor the matmuls before an activation or to
  /// the residual stream.
  int Cheap(int value);
  /// Drops forward ops that no result needs, and their values. Weights and their copies stay: they have the same places
  /// in all programs.
  void DropUnread();
  Model Finish() { return std::move(model_); }

 private:
  /// Makes the inputs of token_loss. `suffix` ends the names.
  std::vector<int> LossTerms(int logits, const std::string& targets, const std::string& suffix, Attributes attributes);
  /// All outputs of the producer of `value`.
  const std::vector<int>& OutputsOf(int value) const;
  int AddState(const std::string& name, StoredPart stored, Type type, std::string layout, ParameterInit init);
  int AddParameter(std::string name, StoredPart stored, Shape shape, std::string layout, ParameterInit init);
  int EmitIn(Role role, OpKind kind, std::vector<int> inputs, std::vector<std::string> names, Attributes attributes,
             std::string layout);
  int Chunk() const {
    return split_.chunk_of_layer[std::min(static_cast<size_t>(layer_), split_.chunk_of_layer.size() - 1)];
  }

  const Split& split_;
  Dtype compute_;
  Purpose purpose_;
  Model model_;
  int layer_ = 0;
};

}  // namespace espalier
