// A device of `units` multiprocessors computes the result of a matmul in tiles, one per unit at a time, in waves:
//
//   tiles = batch ceil(m / rows) ceil(n / columns) splits      waves = ceil(tiles / units)
//   us    = waves 2 rows columns (k / splits + depth) / (peak / units * matmul_share * sustained_share * tile share)
//
// `depth` is the fill and drain of a tile, in contracted elements, and `splits` shares out the contraction when there
// are too few tiles (split-K; partial results pass through memory). The best tile and split are used. Matmuls of a
// group that differ in size share the waves.
#include <algorithm>
#include <cmath>
#include <limits>

#include "formulas.hpp"

namespace espalier {
namespace {

/// Multiply-adds per microsecond at which large matmuls run, times two.
double Rate(const DeviceModel& d, Dtype dtype) {
  const double fp8 = d.fp8_tflops > 0 ? d.fp8_tflops : d.bf16_tflops;
  const double peak = IsFp8(dtype) ? fp8 : dtype == Dtype::kBf16 ? d.bf16_tflops : d.fp32_tflops;
  return peak * 1e6 * d.matmul_share * d.sustained_share;
}

double CeilOf(int64_t a, int64_t b) { return static_cast<double>((a + b - 1) / b); }

/// The matmuls of a group, each with its own rows.
std::vector<MatmulShape> PartsOf(const MatmulShape& s) {
  std::vector<MatmulShape> parts;
  for (const double load : s.loads) {
    MatmulShape part = s;
    part.batch = 1;
    part.loads.clear();
    int64_t& rows = s.loads_k ? part.k : part.m;
    rows = std::llround(load * double(rows));
    if (rows > 0) parts.push_back(part);
  }
  return parts;
}

/// The units take the tiles of all parts as they come, and none ends before the longest of them.
double UnequalWavesUs(const DeviceModel& d, const MatmulShape& s, const MatmulTile& tile, int64_t rows, int64_t columns,
                      int64_t splits) {
  double tiles = 0, flops = 0, longest = 0, partial_bytes = 0;
  for (const MatmulShape& part : PartsOf(s)) {
    const double of_part = double(splits) * CeilOf(part.m, rows) * CeilOf(part.n, columns);
    const double of_tile = 2.0 * double(rows) * double(columns) * (CeilOf(part.k, splits) + d.matmul_depth);
    tiles += of_part;
    flops += of_part * of_tile;
    longest = std::max(longest, of_tile);
    if (splits > 1) partial_bytes += 8.0 * double(splits * part.m * part.n);
  }
  if (tiles == 0) return 0;
  const double of_units = std::max(std::ceil(tiles / d.units) * flops / tiles, longest);
  return of_units / (Rate(d, s.dtype) / d.units * tile.share) + MemoryUs(d, partial_bytes);
}

double WavesUs(const DeviceModel& d, const MatmulShape& s, const MatmulTile& tile, int64_t rows, int64_t columns,
               int64_t splits) {
  if (!s.loads.empty()) return UnequalWavesUs(d, s, tile, rows, columns, splits);
  const double tiles = double(s.batch * splits) * CeilOf(s.m, rows) * CeilOf(s.n, columns);
  const double flops = 2.0 * double(rows) * double(columns) * (CeilOf(s.k, splits) + d.matmul_depth);
  const double us = std::ceil(tiles / d.units) * flops / (Rate(d, s.dtype) / d.units * tile.share);
  const double partial_bytes = splits > 1 ? 8.0 * double(s.batch * splits * s.m * s.n) : 0;  // fp32, written and read
  return us + MemoryUs(d, partial_bytes);
}

double MultiplyUs(const DeviceModel& d, const MatmulShape& s) {
  if (d.tiles.empty()) {
    const double flops = 2.0 * double(s.batch) * double(s.m) * double(s.n) * (double(s.k) + d.matmul_depth);
    return flops / Rate(d, s.dtype);
  }
  double best = std::numeric_limits<double>::infinity();
  for (const MatmulTile& tile : d.tiles)
    for (int64_t splits = 1; splits <= 8; splits *= 2)
      best = std::min({best, WavesUs(d, s, tile, tile.rows, tile.columns, splits),
                       WavesUs(d, s, tile, tile.columns, tile.rows, splits)});
  return best;
}

}  // namespace

double MatmulUs(const DeviceModel& d, const MatmulShape& s) {
  if (s.batch * s.m * s.n * s.k == 0) return 0;
  const double operands = double(SizeOf(s.dtype)) * double(s.k) * double(s.m + s.n);
  const double bytes = double(s.batch) * (operands + s.result_bytes * double(s.m) * double(s.n)) + s.scale_bytes;
  const double us = std::max(MultiplyUs(d, s), MemoryUs(d, bytes));
  return s.aligned ? us : us / d.misaligned_share;
}

}  // namespace espalier
