// The ranges of the numbers in a cluster file (doc/clusters.md has the same table). The ranges leave much room for
// future machines. Within them no formula overflows, whatever the other keys are.
#pragma once

#include "espalier/deck/schema.hpp"

namespace espalier {

inline Allowed Any() { return {}; }
inline Allowed Count() { return {.min = 1, .max = 2147483647}; }
inline Allowed CountOrNone() { return {.min = 0, .max = 2147483647}; }
inline Allowed MemoryBytes() { return {.min = 1, .max = 1e18}; }
inline Allowed ReservedBytes() { return {.min = 0, .max = 1e18}; }
inline Allowed GradientBytes() { return {.min = 0, .max = 8}; }
/// TFLOP/s.
inline Allowed Flops() { return {.min = 1e-6, .max = 1e9}; }
inline Allowed FlopsOrNone() { return {.min = 1e-6, .max = 1e9, .or_zero = true}; }
/// Bytes per us.
inline Allowed Rate() { return {.min = 1e-3, .max = 1e12}; }
inline Allowed RateOrNone() { return {.min = 1e-3, .max = 1e12, .or_zero = true}; }
/// A part of a whole.
inline Allowed Share() { return {.min = 1e-6, .max = 1}; }
inline Allowed ShareOrNone() { return {.min = 1e-6, .max = 1, .or_zero = true}; }
/// One rate relative to another.
inline Allowed Ratio() { return {.min = 1e-6, .max = 1e6}; }
inline Allowed RatioOrNone() { return {.min = 1e-6, .max = 1e6, .or_zero = true}; }
/// Times that memory is read or written.
inline Allowed Passes() { return {.min = 0, .max = 1000}; }
/// A rate of 0 would never end a kernel.
inline Allowed Slowdown() { return {.min = 0, .max = 0.999}; }
inline Allowed Deviation() { return {.min = 0, .max = 1}; }
/// Contracted elements.
inline Allowed Depth() { return {.min = 0, .max = 1e6}; }
/// Fixed time of a kernel or a transfer, us.
inline Allowed Overhead() { return {.min = 0, .max = 1e9}; }
/// Mean time between failures.
inline Allowed HoursOrNone() { return {.min = 1e-3, .max = 1e9, .or_zero = true}; }
/// Until a job is started again.
inline Allowed Seconds() { return {.min = 0, .max = 1e6}; }
/// A measured time, us.
inline Allowed Time() { return {.min = 0, .max = 1e12}; }
inline Allowed Samples() { return {.min = 1, .max = 1e15}; }
/// Extents of a kernel; points of a curve: bytes, ranks, or keys of attention. Doubles hold them exactly.
inline Allowed Sizes() { return {.min = 0, .max = 1e15}; }
/// Rows or columns of a tile.
inline Allowed TileExtent() { return {.min = 1, .max = 1e6}; }

}  // namespace espalier
