// Phases of an exchange as tables of jobs for the kernels of boxes.hpp, in device memory that is filled once, before
// the first step.
#pragma once

#include <deque>
#include <vector>

#include "boxes.hpp"
#include "comm/lowering/exchange.hpp"

namespace espalier::cuda {

/// Jobs of one launch.
template <typename Job>
struct Table {
  std::vector<Job> jobs;
  const Job* d_jobs = nullptr;
  int64_t tiles = 0;
};

/// The units of a copy: the widest, up to 16 bytes, that divide all runs, steps and places of both sides (and `places`,
/// of the same shape as `to`); at least `element` bytes, and no width between that and 16 unless `any_width`.
Units UnitsOf(const BoxCopy& copy, int64_t element, bool any_width, const std::vector<const std::byte*>& places = {});

/// Gathers tables, then puts them onto the device together. What it handed out stays where it is.
class Tables {
 public:
  Tables() = default;
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  Table<CopyJob>& Copies(const std::vector<const std::vector<BoxCopy>*>& lists);
  Table<JoinJob>& Joins(const std::vector<Join>& joins);
  /// Allocates and fills the device's memory; nothing may be added afterwards.
  void Upload();

 private:
  std::deque<Table<CopyJob>> copies_;
  std::deque<Table<JoinJob>> joins_;
  std::deque<std::vector<const std::byte*>> sources_;  ///< by job of all joins, in order
  void* memory_ = nullptr;
};

}  // namespace espalier::cuda
