#include "state.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "espalier/data/initial_weights.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

namespace {

constexpr std::string_view kParameters = "parameters/";

/// Index of the parameter that a state is, or is a moment of: "optimizer/exp_avg/<parameter>".
size_t ParameterOf(const Compilation& compilation, std::string_view state) {
  const std::string_view name = state.substr(state.rfind('/') + 1);
  const auto parameter = std::find(compilation.parameters.begin(), compilation.parameters.end(), name);
  CHECK(parameter != compilation.parameters.end(), "{} is no parameter of the model", name);
  return static_cast<size_t>(parameter - compilation.parameters.begin());
}

/// Where a state lies in a larger one, if its parameter does.
std::optional<StoredPart> PartOf(const Compilation& compilation, const Value& state) {
  StoredPart part = compilation.stored[ParameterOf(compilation, state.name)];
  if (part.shape == state.type.shape) return std::nullopt;
  part.name = state.name.substr(0, state.name.rfind('/') + 1) + part.name;
  return part;
}

}  // namespace

std::vector<StateTensor> StateTensors(const Compilation& compilation) {
  std::vector<StateTensor> tensors;
  for (const Value& v : compilation.graph->values)
    if (v.kind == ValueKind::kState)
      tensors.push_back({v.name, v.type, compilation.StageOf(v.chunk), PartOf(compilation, v)});
  return tensors;
}

std::vector<LocalTensor> LocalTensors(const std::vector<StateTensor>& tensors, const Executor& executor,
                                      const Coordinate& coordinate) {
  std::vector<LocalTensor> local;
  for (const StateTensor& tensor : tensors)
    if (tensor.stage == coordinate[static_cast<size_t>(Axis::kPp)])
      local.push_back({&tensor, executor.At(tensor.name).data});
  return local;
}

void InitializeWeights(const Compilation& compilation, const Executor& executor) {
  for (const NamedTensor& state : executor.All(ValueKind::kState)) {
    float* data = state.tensor.As<float>();
    const int64_t count = Volume(state.tensor.shape);
    std::fill(data, data + count, 0.0f);
    if (!state.name.starts_with(kParameters)) continue;
    const size_t parameter = ParameterOf(compilation, state.name);
    const ParameterInit& init = compilation.inits[parameter];
    if (init.kind == ParameterInit::Kind::kOnes) std::fill(data, data + count, 1.0f);
    if (init.kind != ParameterInit::Kind::kNormal) continue;
    Box box;
    for (size_t d = 0; d < state.tensor.shape.size(); ++d)
      box.push_back({state.tensor.start[d], state.tensor.start[d] + state.tensor.shape[d]});
    const StoredPart& stored = compilation.stored[parameter];
    FillNormal(data, compilation.deck.run.seed, stored.name, stored.shape, stored.Place(box), init.std);
  }
}

int ThreadCount(const Deck& deck, int ranks_on_node) {
  if (deck.run.threads > 0) return static_cast<int>(deck.run.threads);
  cpu_set_t cores;
  const int count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::max(1, count / std::max(1, ranks_on_node));
}

}  // namespace espalier
