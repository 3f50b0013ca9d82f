// Times of kernels, from timed steps of a program to rows of a cost table.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/costs/cost_table.hpp"
#include "espalier/executor/device.hpp"
#include "espalier/executor/executor.hpp"

namespace espalier {

/// One kernel on one rank: all its calls in a step.
struct KernelSum {
  OpKind kind = OpKind::kNone;
  std::string variant;
  std::vector<int64_t> sizes;
  double us = 0;        ///< time of all calls together
  int64_t calls = 0;    ///< per step
  int64_t samples = 0;  ///< number of measured times
  auto Fields() { return std::tie(kind, variant, sizes, us, calls, samples); }
};

/// Collects timed steps of one program on this rank.
class KernelTimes {
 public:
  KernelTimes(const Program& program, const Coordinate& coordinate);

  /// Adds a step that was timed (Executor::TimeNextStep). `gap_us` is the time between two kernels; it counts as the
  /// second one's.
  void Add(const std::vector<double>& instruction_ms, double gap_us);
  int steps() const { return static_cast<int>(steps_us_.size()); }
  /// Kernels of a step.
  int64_t calls() const { return std::ssize(instructions_); }

  /// The median over the steps of each call, times one factor for all calls, such that they add up to the median of the
  /// steps' sums. So a disturbed call counts as its median, and a step predicted from the rows equals the median step.
  std::vector<KernelSum> Sums() const;
  /// Half of the interquartile range of the steps' sums, relative to their median.
  double Spread() const;
  /// The best rate of kernels that are bound by memory and move at least `least_bytes`, bytes per us; 0: there is none.
  double BestBytesPerUs(int64_t least_bytes) const;

 private:
  struct Timed {
    size_t instruction;  ///< in Program::instructions
    size_t key;          ///< in keys_
  };

  double MedianUs(size_t call) const;

  std::vector<KernelKey> keys_;
  std::vector<double> moved_bytes_;            ///< by key; 0: the kernel is not bound by memory
  std::vector<Timed> instructions_;            ///< instructions of the compute lane
  std::vector<std::vector<double>> calls_us_;  ///< by call, then step
  std::vector<double> steps_us_;               ///< all calls of a step
};

/// The time between two kernels: on a CPU all of the step outside of kernels and waits; on a GPU it is unknown, 0.
double GapUs(const Device& device, const StepTimes& times, int64_t calls);

/// The rows of all ranks' sums: the mean of all calls.
std::map<KernelKey, Measured> RowsOf(const std::vector<std::vector<KernelSum>>& of_ranks);

}  // namespace espalier
