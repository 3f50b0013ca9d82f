#include "state.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "espalier/data/initial_weights.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

std::vector<StateTensor> StateTensors(const Compilation& compilation) {
  std::vector<StateTensor> tensors;
  for (const Value& v : compilation.graph->values)
    if (v.kind == ValueKind::kState) tensors.push_back({v.name, v.type, compilation.StageOf(v.chunk)});
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
    constexpr std::string_view kPrefix = "parameters/";
    if (!state.name.starts_with(kPrefix)) continue;
    const std::string_view name = state.name.substr(kPrefix.size());
    const auto parameter = std::find(compilation.parameters.begin(), compilation.parameters.end(), name);
    CHECK(parameter != compilation.parameters.end(), "{} is no parameter of the model", name);
    const ParameterInit& init = compilation.inits[static_cast<size_t>(parameter - compilation.parameters.begin())];
    if (init.kind == ParameterInit::Kind::kOnes) {
      std::fill(data, data + count, 1.0f);
      continue;
    }
    Box box;
    for (size_t d = 0; d < state.tensor.shape.size(); ++d)
      box.push_back({state.tensor.start[d], state.tensor.start[d] + state.tensor.shape[d]});
    FillNormal(data, compilation.deck.run.seed, name, state.type->shape, box, init.std);
  }
}

int ThreadCount(const Deck& deck, int ranks_on_node) {
  if (deck.run.threads > 0) return static_cast<int>(deck.run.threads);
  cpu_set_t cores;
  const int count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::max(1, count / std::max(1, ranks_on_node));
}

}  // namespace espalier
