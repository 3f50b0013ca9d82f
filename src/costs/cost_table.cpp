#include "espalier/costs/cost_table.hpp"

namespace espalier {
namespace {

/// The mean of two measurements, weighted by their samples.
void Add(Measured& to, const Measured& newer) {
  const int64_t samples = to.samples + newer.samples;
  if (samples > 0) to.us += (newer.us - to.us) * (static_cast<double>(newer.samples) / static_cast<double>(samples));
  to.samples = samples;
}

}  // namespace

void CostTable::Merge(const CostTable& newer) {
  for (const auto& [key, measured] : newer.kernels)
    if (const auto [row, is_new] = kernels.try_emplace(key, measured); !is_new) Add(row->second, measured);
  for (const auto& [key, points] : newer.collectives)
    for (const auto& [bytes, measured] : points)
      if (const auto [point, is_new] = collectives[key].try_emplace(bytes, measured); !is_new)
        Add(point->second, measured);
}

}  // namespace espalier
