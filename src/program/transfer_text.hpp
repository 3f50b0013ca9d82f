#pragma once

#include <string>

#include "espalier/program/instruction.hpp"

namespace espalier {

/// What WireBytes and CommWorkspaceBytes follow from: ops with equal texts have equal bytes on every rank. The layers
/// of a model have the same few, and a plan of the transfer takes time for every member of the group.
std::string TransferText(const Graph& graph, const Op& op);

}  // namespace espalier
