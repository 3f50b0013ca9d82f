// The states of a program as the checkpoint and data rooms see them.
#pragma once

#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/executor/executor.hpp"
#include "espalier/program/compile.hpp"

namespace espalier {

/// Every state of every stage, in graph order: the same list on all ranks.
std::vector<StateTensor> StateTensors(const Compilation& compilation);

/// The parameters of a model as a checkpoint holds them, whole.
std::vector<StateTensor> StateTensors(const Model& model);

/// This rank's pieces of `tensors`.
std::vector<LocalTensor> LocalTensors(const std::vector<StateTensor>& tensors, const Executor& executor,
                                      const Coordinate& coordinate);

/// Fills this rank's weights as the model says (doc/numerics.md); moments start at zero.
void InitializeWeights(const Compilation& compilation, const Executor& executor);

/// Threads for kernels of a process that is alone: run.threads, OMP_NUM_THREADS, or the cores that it may use.
int ThreadCount(const Deck& deck);

}  // namespace espalier
