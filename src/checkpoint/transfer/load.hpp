// Which files of a checkpoint a rank reads when it loads.
#pragma once

#include <set>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {

/// Indices into the files of the manifest: those with parts of this rank's shards, and this rank's share of the checks.
std::set<int> FilesToRead(const Manifest& manifest, const std::vector<LocalTensor>& local, const Mesh& mesh,
                          const World& world);

}  // namespace espalier
