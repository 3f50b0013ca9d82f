#include "train/measuring/kernel_times.hpp"

#include <algorithm>
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/median.hpp"

namespace espalier {

KernelTimes::KernelTimes(const Program& program, const Coordinate& coordinate) {
  std::map<std::pair<int, bool>, size_t> key_of_op;
  std::map<KernelKey, size_t> numbers;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.lane != Lane::kCompute) continue;
    const auto [known, is_new] = key_of_op.try_emplace({instruction.op, instruction.accumulate}, 0);
    if (is_new) {
      const LocalOp op = LocalOpOf(*program.graph, program.graph->op(instruction.op), program.mesh, coordinate);
      const auto [number, is_new_key] = numbers.try_emplace(KeyOf(op, instruction.accumulate), keys_.size());
      known->second = number->second;
      if (is_new_key) {
        const Work& work = Define(op.op.kind).kernel.work;
        keys_.push_back(number->first);
        moved_bytes_.push_back(work.bytes == nullptr ? 0 : work.bytes(op, instruction.accumulate));
      }
    }
    instructions_.push_back({i, known->second});
  }
  calls_us_.resize(instructions_.size());
}

void KernelTimes::Add(const std::vector<double>& instruction_ms, double gap_us) {
  double sum = 0;
  for (size_t call = 0; call < instructions_.size(); ++call) {
    const double us = instruction_ms.at(instructions_[call].instruction) * 1e3 + gap_us;
    calls_us_[call].push_back(us);
    sum += us;
  }
  steps_us_.push_back(sum);
}

double KernelTimes::MedianUs(size_t call) const { return MedianOf(calls_us_[call]); }

std::vector<KernelSum> KernelTimes::Sums() const {
  std::vector<KernelSum> sums;
  for (const KernelKey& key : keys_) sums.push_back({key.kind, key.variant, key.sizes});
  if (steps_us_.empty()) return {};
  double all = 0;
  for (size_t call = 0; call < instructions_.size(); ++call) {
    KernelSum& sum = sums[instructions_[call].key];
    const double us = MedianUs(call);
    all += us;
    sum.us += us;
    ++sum.calls;
    sum.samples += steps();
  }
  const double factor = all > 0 ? MedianOf(steps_us_) / all : 1;
  for (KernelSum& sum : sums) sum.us *= factor;
  return sums;
}

double KernelTimes::Spread() const {
  if (steps_us_.empty()) return 0;
  std::vector<double> sorted = steps_us_;
  std::ranges::sort(sorted);
  const size_t quarter = sorted.size() / 4;
  return (sorted[sorted.size() - 1 - quarter] - sorted[quarter]) / 2 / MedianOf(sorted);
}

double KernelTimes::BestBytesPerUs(int64_t least_bytes) const {
  double best = 0;
  for (size_t call = 0; call < instructions_.size() && steps() > 0; ++call)
    if (const double bytes = moved_bytes_[instructions_[call].key]; bytes >= double(least_bytes))
      best = std::max(best, bytes / MedianUs(call));
  return best;
}

double GapUs(const Device& device, const StepTimes& times, int64_t calls) {
  return device.Kind() == DeviceKind::kCpu && calls > 0 ? times.idle_ms * 1e3 / static_cast<double>(calls) : 0;
}

std::map<KernelKey, Measured> RowsOf(const std::vector<std::vector<KernelSum>>& of_ranks) {
  struct Total {
    double us = 0;
    int64_t calls = 0, samples = 0;
  };
  std::map<KernelKey, Total> totals;
  for (const std::vector<KernelSum>& sums : of_ranks)
    for (const KernelSum& sum : sums) {
      Total& total = totals[{sum.kind, sum.variant, sum.sizes}];
      total.us += sum.us;
      total.calls += sum.calls;
      total.samples += sum.samples;
    }
  std::map<KernelKey, Measured> rows;
  for (const auto& [key, total] : totals) rows[key] = {total.us / static_cast<double>(total.calls), total.samples};
  return rows;
}

}  // namespace espalier
