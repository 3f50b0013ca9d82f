#include "interpolate.hpp"

#include <algorithm>
#include <cmath>

#include "kernel_key.hpp"

namespace espalier {
namespace {

/// A row that a key may be interpolated from, and its distance.
struct Neighbour {
  const KernelKey* key = nullptr;
  double measured_us = 0;
  double distance = 0;  ///< distance of the logarithms of the sizes
};

/// The distance, or nothing if a size differs by more than the factor.
std::optional<double> DistanceOf(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (a[i] <= 0 || b[i] <= 0) return std::nullopt;
    const double difference = std::log(static_cast<double>(a[i]) / static_cast<double>(b[i]));
    if (std::abs(difference) > std::log(kNeighbourFactor) * (1 + 1e-12)) return std::nullopt;
    squares += difference * difference;
  }
  return std::sqrt(squares);
}

/// Every size is within the range of the rows' sizes, or beyond it by at most the factor.
bool IsInRange(const KernelKey& key, const std::vector<Neighbour>& rows) {
  for (size_t i = 0; i < key.sizes.size(); ++i) {
    const auto [least, most] = std::ranges::minmax(rows, {}, [&](const Neighbour& row) { return row.key->sizes[i]; });
    const auto size = static_cast<double>(key.sizes[i]);
    if (size * kBeyondFactor < static_cast<double>(least.key->sizes[i]) ||
        size > kBeyondFactor * static_cast<double>(most.key->sizes[i]))
      return false;
  }
  return true;
}

/// The nearest rows of the same op and variant.
std::vector<Neighbour> NeighboursOf(const CostTable& table, const KernelKey& key) {
  std::vector<Neighbour> rows;
  for (auto row = table.kernels.lower_bound({key.kind, key.variant, {}});
       row != table.kernels.end() && row->first.kind == key.kind && row->first.variant == key.variant; ++row) {
    if (row->first.sizes.size() != key.sizes.size()) continue;
    if (const auto distance = DistanceOf(key.sizes, row->first.sizes))
      rows.push_back({&row->first, row->second.us, *distance});
  }
  if (rows.empty() || !IsInRange(key, rows)) return {};
  std::ranges::stable_sort(rows, {}, &Neighbour::distance);
  if (rows.size() > kNeighbours) rows.resize(kNeighbours);
  return rows;
}

/// Measured / formula, weighted by the inverse distance.
std::optional<double> RatioOf(const std::vector<Neighbour>& neighbours, const KernelFormula& formula) {
  double sum = 0, weights = 0;
  for (const Neighbour& neighbour : neighbours) {
    const std::optional<RebuiltOp> rebuilt = Rebuild(*neighbour.key);
    const double us = rebuilt ? formula(rebuilt->Local(), rebuilt->accumulate) : 0;
    if (us <= 0) continue;
    sum += neighbour.measured_us / us / neighbour.distance;
    weights += 1 / neighbour.distance;
  }
  return weights > 0 ? std::optional(sum / weights) : std::nullopt;
}

/// A rising function through the points.
using Rising = std::vector<std::pair<double, double>>;

Rising RisingOf(const std::map<int64_t, Measured>& points) {
  Rising rising;
  for (const auto& [bytes, measured] : points)
    rising.emplace_back(static_cast<double>(bytes),
                        rising.empty() ? measured.us : std::max(rising.back().second, measured.us));
  return rising;
}

double Slope(const std::pair<double, double>& a, const std::pair<double, double>& b) {
  return (b.second - a.second) / (b.first - a.first);
}

double Beyond(const Rising& points, double bytes) {
  const auto& last = points.back();
  const double slope = std::max(Slope(points[points.size() - 2], last), Slope(points.front(), last));
  return last.second + slope * (bytes - last.first);
}

}  // namespace

std::optional<Cost> MeasuredKernel(const CostTable& table, const LocalOp& op, bool accumulate,
                                   const KernelFormula& formula) {
  if (table.kernels.empty()) return std::nullopt;
  const KernelKey key = KeyOf(op, accumulate);
  if (const auto row = table.kernels.find(key); row != table.kernels.end())
    return Cost{row->second.us, CostSource::kMeasured};
  const std::optional<double> ratio = RatioOf(NeighboursOf(table, key), formula);
  if (!ratio) return std::nullopt;
  return Cost{formula(op, accumulate) * *ratio, CostSource::kInterpolated};
}

std::optional<Cost> MeasuredTransfer(const CostTable& table, OpKind kind, const GroupPlace& place, int64_t bytes,
                                     const BytesFormula& formula) {
  const auto row = table.collectives.find({kind, place});
  if (row == table.collectives.end() || row->second.empty()) return std::nullopt;
  const Rising points = RisingOf(row->second);
  const auto x = static_cast<double>(bytes);
  const auto cost = [&](double us) {
    return Cost{us, row->second.contains(bytes) ? CostSource::kMeasured : CostSource::kInterpolated};
  };
  if (points.size() == 1) {
    const double scale = formula(row->second.begin()->first);
    return cost(scale > 0 ? points[0].second * (formula(bytes) / scale) : points[0].second);
  }
  return cost(x <= points.back().first ? At(points, x) : Beyond(points, x));
}

}  // namespace espalier
