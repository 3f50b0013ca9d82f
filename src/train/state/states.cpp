#include "espalier/train/states.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The part of a stored tensor that a state is, if its parameter is part of a larger one.
std::optional<StoredPart> PartOf(const Compilation& compilation, const Value& state) {
  StoredPart part = compilation.stored[ParameterIndex(compilation, state.name)];
  if (part.shape == state.type.shape) return std::nullopt;
  part.name = state.name.substr(0, state.name.rfind('/') + 1) + part.name;
  return part;
}

}  // namespace

size_t ParameterIndex(const Compilation& compilation, std::string_view state) {
  const std::string_view name = state.substr(state.rfind('/') + 1);
  const auto parameter = std::find(compilation.parameters.begin(), compilation.parameters.end(), name);
  CHECK(parameter != compilation.parameters.end(), "{} is no parameter of the model", name);
  return static_cast<size_t>(parameter - compilation.parameters.begin());
}

std::vector<StateTensor> StateTensors(const Compilation& compilation) {
  std::vector<StateTensor> tensors;
  for (const Value& v : compilation.graph->values)
    if (v.kind == ValueKind::kState)
      tensors.push_back({v.name, v.type, compilation.StageOf(v.chunk), PartOf(compilation, v)});
  return tensors;
}

std::vector<StateTensor> ParameterTensors(const Deck& deck) {
  const Model model = BuildModel(deck, SplitLayers(deck, 1), deck.batch.micro, Purpose::kSample);
  std::vector<StateTensor> tensors;
  for (const StoredPart& stored : model.stored) {
    const std::string name = std::string(kParameterPrefix) + stored.name;
    if (std::ranges::find(tensors, name, &StateTensor::name) == tensors.end())
      tensors.push_back({name, MakeType(Dtype::kF32, stored.shape)});
  }
  return tensors;
}

std::vector<LocalTensor> LocalTensors(const std::vector<StateTensor>& tensors, const Executor& executor,
                                      const Coordinate& coordinate) {
  std::vector<LocalTensor> local;
  for (const StateTensor& tensor : tensors)
    if (tensor.stage == coordinate[static_cast<size_t>(Axis::kPp)])
      local.push_back({&tensor, executor.At(tensor.name).data, &executor.arena()});
  return local;
}

}  // namespace espalier
