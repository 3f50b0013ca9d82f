#include "espalier/train/states.hpp"

#include <map>
#include <set>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The part of a stored tensor that a state forms, if its parameter is part of a larger one.
std::optional<StoredPart> PartOf(const Compilation& compilation, const ParameterIndex& index, const Value& state) {
  StoredPart part = compilation.stored[index.Of(state.name)];
  if (part.shape == state.type.shape) return std::nullopt;
  part.name = state.name.substr(0, state.name.rfind('/') + 1) + part.name;
  return part;
}

}  // namespace

ParameterIndex::ParameterIndex(const Compilation& compilation) {
  for (size_t i = 0; i < compilation.parameters.size(); ++i) by_name_.emplace(compilation.parameters[i], i);
}

size_t ParameterIndex::Of(std::string_view state) const {
  const std::string_view name = state.substr(state.rfind('/') + 1);
  const auto parameter = by_name_.find(name);
  CHECK(parameter != by_name_.end(), "{} is no parameter of the model", name);
  return parameter->second;
}

std::vector<StateTensor> StateTensors(const Compilation& compilation) {
  const ParameterIndex index(compilation);
  std::vector<StateTensor> tensors;
  for (const Value& v : compilation.graph->values)
    if (v.kind == ValueKind::kState)
      tensors.push_back({v.name, v.type, compilation.StageOf(v.chunk), PartOf(compilation, index, v)});
  return tensors;
}

std::vector<StateTensor> ParameterTensors(const Deck& deck) {
  const Model model = BuildModel(deck, SplitLayers(deck, 1), deck.batch.micro, Purpose::kTrain);
  std::vector<StateTensor> tensors;
  std::set<std::string_view> known;
  for (const StoredPart& stored : model.stored)
    if (known.insert(stored.name).second)
      tensors.push_back({std::string(kParameterPrefix) + stored.name, MakeType(Dtype::kF32, stored.shape)});
  return tensors;
}

std::vector<LocalTensor> LocalTensors(const std::vector<StateTensor>& tensors, const Executor& executor,
                                      const Coordinate& coordinate) {
  std::map<std::string_view, const NamedTensor*> by_name;
  const std::vector<NamedTensor> states = executor.All(ValueKind::kState);
  for (const NamedTensor& state : states) by_name[state.name] = &state;
  std::vector<LocalTensor> local;
  for (const StateTensor& tensor : tensors) {
    if (tensor.stage != coordinate[static_cast<size_t>(Axis::kPp)]) continue;
    const auto found = by_name.find(tensor.name);
    CHECK(found != by_name.end(), "{} is no state of this rank", tensor.name);
    local.push_back({&tensor, found->second->tensor.data, found->second->arena});
  }
  return local;
}

}  // namespace espalier
