// Batches of token ids, read one step ahead of the step that uses them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "espalier/data/permutation.hpp"
#include "espalier/data/token_source.hpp"
#include "espalier/graph/type.hpp"

namespace espalier {

/// Which part of a global batch this rank holds.
struct BatchLayout {
  int64_t microbatches = 1;
  int64_t microbatch_rows = 1;     ///< sequences of one microbatch, all data-parallel ranks together
  Range rows;                      ///< of each microbatch, held here; may be empty
  std::vector<int64_t> positions;  ///< of each sequence, held here, in their order in memory

  /// Sequences per step.
  int64_t Global() const { return microbatches * microbatch_rows; }
};

/// Positions 0 .. seq_len - 1: every rank's when the sequence is not split.
std::vector<int64_t> AllPositions(int64_t seq_len);

/// ids and targets are i32[rows, positions], row-major; the target of position p is token p + 1.
struct Microbatch {
  std::vector<int32_t> ids;
  std::vector<int32_t> targets;
};

struct Batch {
  int64_t step = 0;  ///< from 0
  std::vector<Microbatch> microbatches;
};

/// How a run walks through its samples.
struct SampleOrder {
  int64_t seed = 0;
  Order order = Order::kShuffled;
  int64_t first = 0;  ///< position of step 0's first sample: other than 0 where samples were passed over
};

/// Fills `batch` with step `step` (from 0): row r of microbatch j is the sample at position
/// order.first + step * Global() + j * microbatch_rows + r of the run's order. Throws what the source throws.
void LoadBatch(TokenSource& source, SampleOrder order, const BatchLayout& layout, int64_t step, Batch& batch);

/// Batch `index` of a pass through a validation source: LoadBatch in sequential order. Positions beyond its last sample
/// begin again at the first.
Batch ValidationBatch(TokenSource& source, const BatchLayout& layout, int64_t index);

/// Reads batches on a thread of its own, one ahead.
class BatchLoader {
 public:
  /// Starts to read batch `first_step` (from 0). Nobody else may read `source` meanwhile.
  BatchLoader(std::shared_ptr<TokenSource> source, SampleOrder order, BatchLayout layout, int64_t first_step);
  /// Returns as soon as the read in hand is done.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// Waits until the next step's batch is read; returns why it could not be, or null. Next() will not wait, and throws
  /// the same.
  std::exception_ptr Await();
  /// The next step's batch, valid until the next call. Rethrows what the source threw for it, and goes on throwing it.
  const Batch& Next();
  /// Milliseconds that the last batch was waited for, by Await and Next.
  double wait_ms() const { return wait_ms_; }
  const TokenSource& source() const { return *source_; }

 private:
  void Run(int64_t first_step);

  std::shared_ptr<TokenSource> source_;
  const SampleOrder order_;
  const BatchLayout layout_;
  Batch loading_;  ///< the thread's until ready_
  Batch current_;  ///< the caller's
  double wait_ms_ = 0;
  double awaited_ms_ = 0;  ///< so far, for the next one

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;  ///< loading_ is whole, or error_ is set
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace espalier
