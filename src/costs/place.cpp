#include <algorithm>
#include <map>

#include "espalier/costs/costs.hpp"

namespace espalier {

std::string_view Name(CostSource source) {
  static constexpr ByCostSource<std::string_view> kNames = {"measured", "interpolated", "formula"};
  return kNames[source];
}

double At(const Curve& curve, double x) {
  if (curve.empty()) return 0;
  const auto above = std::ranges::lower_bound(curve, x, {}, &Curve::value_type::first);
  if (above == curve.begin()) return curve.front().second;
  if (above == curve.end()) return curve.back().second;
  const auto [x0, y0] = *std::prev(above);
  const auto [x1, y1] = *above;
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

GroupPlace PlaceOf(const Mesh& mesh, AxisSet axes, const Coordinate& coordinate, int ranks_per_node) {
  std::map<int, int> members_on_node;
  const std::vector<int> ranks = mesh.GroupRanks(axes, coordinate);
  GroupPlace place{.ranks = static_cast<int>(ranks.size()), .nodes = 0, .ranks_per_node = 0};
  for (int rank : ranks)
    place.ranks_per_node = std::max(place.ranks_per_node, ++members_on_node[rank / ranks_per_node]);
  place.nodes = static_cast<int>(members_on_node.size());
  return place;
}

}  // namespace espalier
