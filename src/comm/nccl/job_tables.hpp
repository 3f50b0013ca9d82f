// The copies and reductions of an exchange as job tables for the kernels of copy_kernels.hpp. The tables are in device
// memory, which is filled once, before the first step.
#pragma once

#include <deque>
#include <vector>

#include "comm/lowering/exchange.hpp"
#include "copy_kernels.hpp"

namespace espalier::cuda {

/// Jobs of one launch.
template <typename Job>
struct Table {
  std::vector<Job> jobs;
  const Job* d_jobs = nullptr;
  int64_t tiles = 0;
};

/// The units of a copy: the widest, up to 16 bytes, to which all runs, strides and addresses of both sides are aligned
/// (and the addresses in `places`, which have the layout of `to`). At least `element` bytes; unless `any_width`, either
/// `element` or 16.
Units UnitsOf(const StridedCopy& copy, int64_t element, bool any_width,
              const std::vector<const std::byte*>& places = {});

/// Collects tables, then uploads them to the device together. References that it returned stay valid.
class Tables {
 public:
  Tables() = default;
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  Table<CopyJob>& Copies(const std::vector<const std::vector<StridedCopy>*>& lists);
  Table<ReduceJob>& Reductions(const std::vector<Reduction>& reductions);
  /// Allocates and fills device memory; nothing may be added afterwards.
  void Upload();

 private:
  std::deque<Table<CopyJob>> copies_;
  std::deque<Table<ReduceJob>> reductions_;
  std::deque<std::vector<const std::byte*>> sources_;  ///< by job, over all tables of reductions
  void* memory_ = nullptr;
};

}  // namespace espalier::cuda
