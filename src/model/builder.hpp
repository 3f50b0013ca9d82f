// What model files are written with: values by id, ops by name, logical dims for what the layout must respect.
#pragma once

#include <string>
#include <vector>

#include "espalier/model/model.hpp"
#include "espalier/ops/op.hpp"

namespace espalier {

class Builder {
 public:
  Builder(const Split& split, Dtype compute) : split_(split), compute_(compute) {}

  /// All that follows belongs to this layer, and to its chunk.
  void Layer(int layer) { layer_ = layer; }

  /// An input that is filled from outside: once per microbatch, or once per step on every stage.
  int MicrobatchInput(const std::string& name, Shape shape, std::string layout);
  int StepInput(const std::string& name, Shape shape, std::string layout);

  /// A weight in the compute type: the fp32 master "parameters/<name>" itself, or its cast, made once a step.
  int Parameter(const std::string& name, Shape shape, std::string layout, ParameterInit init);
  /// The same for one that is stored as a part of a larger tensor; `word` tells it from the other parts.
  int Parameter(const std::string& word, const StoredPart& stored, Shape shape, std::string layout, ParameterInit init);

  /// Emits a forward op, names its outputs and returns the first, which gets the layout.
  int Emit(std::string_view kind, std::vector<int> inputs, std::vector<std::string> names, Attributes attributes = {},
           std::string layout = "");
  /// The same in role P: it needs step values only.
  int Prepare(std::string_view kind, std::vector<int> inputs, const std::string& name, Attributes attributes = {});
  /// How every family ends: logits [batch, seq, vocab] are the result for sampling; else the sum of token losses and
  /// their count.
  void Loss(int logits, Purpose purpose);
  /// Marks the op that makes `value` as cheap and returns `value`. Selective recompute makes cheap values again in
  /// backward. Cheap is what takes much memory for its work: norms, activations, and what attention reads (q, k and v
  /// with their positions); never attention itself, nor the products before an activation or back to the residual
  /// stream.
  int Cheap(int value);
  Model Finish() { return std::move(model_); }

 private:
  /// All outputs of the op that makes `value`.
  const std::vector<int>& OutputsOf(int value) const;
  int AddParameter(std::string name, StoredPart stored, Shape shape, std::string layout, ParameterInit init);
  int EmitIn(Role role, std::string_view kind, std::vector<int> inputs, std::vector<std::string> names,
             Attributes attributes, std::string layout);
  int Chunk() const { return split_.chunk_of_layer[static_cast<size_t>(layer_)]; }

  const Split& split_;
  Dtype compute_;
  Model model_;
  int layer_ = 0;
};

}  // namespace espalier
