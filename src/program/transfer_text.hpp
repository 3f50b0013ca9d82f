#pragma once

#include <string>

#include "espalier/program/instruction.hpp"

namespace espalier {

/// A cache key for WireBytes and CommWorkspaceBytes: ops with equal texts have equal bytes on every rank. All layers of
/// a model have the same few texts, and planning a transfer takes time proportional to the group.
std::string TransferText(const Graph& graph, const Op& op);

}  // namespace espalier
