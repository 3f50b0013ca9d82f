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
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/graph/type.hpp"

namespace espalier {

/// The part of a global batch that this rank holds.
struct BatchLayout {
  int64_t microbatches = 1;
  int64_t microbatch_rows = 1;     ///< sequences per microbatch, over all data-parallel ranks
  Range rows;                      ///< rows of each microbatch that this rank holds; may be empty
  std::vector<int64_t> positions;  ///< positions of each sequence that this rank holds, in memory order
  bool isolate_documents = false;  ///< no token is a target across a boundary of documents
  /// Positions whose documents attention needs here if they differ from `positions`: all positions of the sequences.
  std::vector<int64_t> document_positions = {};
  /// Positions of the residual stream here, if dropout needs them.
  std::vector<int64_t> stream_positions = {};
  /// Attention drops probabilities, and needs the same positions as for documents.
  bool query_numbers = false;
  /// Layers for further tokens: depth k needs the tokens k places ahead, and targets k + 1 places ahead.
  int64_t depths = 0;

  const std::vector<int64_t>& DocumentPositions() const {
    return document_positions.empty() ? positions : document_positions;
  }
  /// Sequences per step.
  int64_t Global() const { return microbatches * microbatch_rows; }
};

/// Positions 0 .. seq_len - 1, which every rank has if the sequence is not sharded.
std::vector<int64_t> AllPositions(int64_t seq_len);

/// i32[rows, positions], row-major, except document_starts.
struct Microbatch {
  std::vector<int32_t> ids;
  std::vector<int32_t> targets;  ///< target of position p: token p + 1; -1 if it does not count
  /// i32[rows, DocumentPositions()]: the first position of the document in the sample.
  std::vector<int32_t> document_starts;
  std::vector<int32_t> positions;  ///< distance of position p from the first position of its document
  /// Numbers of tokens in the batch of the step, seq_len for each sequence, if the layout needs them: i32[rows,
  /// stream_positions] and i32[rows, DocumentPositions()].
  std::vector<int32_t> stream_numbers, query_numbers;
  /// For each depth k from 1 on: the token k places after position p, or the sample's last one, and the target, which
  /// is token p + k + 1; -1 if it does not count, or is not in the sample.
  std::vector<std::vector<int32_t>> further_ids, further_targets;
};

struct Batch {
  int64_t step = 0;  ///< from 0
  std::vector<Microbatch> microbatches;
};

/// Fills `batch` with step `step` (from 0): row r of microbatch j is the sample at position
/// order.first + step * Global() + j * microbatch_rows + r of the run's order. Throws what the source throws.
void LoadBatch(TokenSource& source, SampleOrder order, const BatchLayout& layout, int64_t step, Batch& batch);

/// Fills `batch` with `microbatches` of the sequences from position order.first + `first` on, and otherwise as
/// LoadBatch.
void LoadSequences(TokenSource& source, SampleOrder order, const BatchLayout& layout, int64_t first,
                   int64_t microbatches, Batch& batch);

/// Batch `index` of a pass over a validation source: LoadBatch in sequential order. Positions after the last sample
/// start again at the first.
Batch ValidationBatch(TokenSource& source, const BatchLayout& layout, int64_t index);

/// Reads batches on its own thread, one ahead.
class BatchLoader {
 public:
  /// Starts to read batch `first_step` (from 0). `ramp` gives the number of sequences of each step;
  /// `layout.microbatches` does not. Nothing else may use `source` meanwhile.
  BatchLoader(std::shared_ptr<TokenSource> source, SampleOrder order, BatchLayout layout, const BatchRamp& ramp,
              int64_t first_step);
  /// Waits for the read in progress.
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  /// Waits until the batch of the next step is read; returns the error, or null. Next() then does not wait, and throws
  /// the same error.
  std::exception_ptr Await();
  /// The batch of the next step, valid until the next call. Rethrows an error of the source, at every call from then
  /// on.
  const Batch& Next();
  /// Milliseconds spent waiting for the last batch, in Await and Next.
  double wait_ms() const { return wait_ms_; }
  const TokenSource& source() const { return *source_; }

 private:
  void Run(int64_t first_step);

  std::shared_ptr<TokenSource> source_;
  const SampleOrder order_;
  const BatchLayout layout_;
  const BatchRamp ramp_;
  Batch loading_;  ///< owned by the thread until ready_
  Batch current_;  ///< owned by the caller
  double wait_ms_ = 0;
  double awaited_ms_ = 0;  ///< waited so far for the next batch

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;  ///< loading_ is complete, or error_ is set
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  ///< last, since it uses the members above
};

}  // namespace espalier
