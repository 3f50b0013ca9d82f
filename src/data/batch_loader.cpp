#include "espalier/data/batch_loader.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <utility>

#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void CheckLayout(const BatchLayout& layout, int64_t seq_len) {
  CHECK(layout.microbatches >= 1 && layout.microbatch_rows >= 1, "{} microbatches of {} rows", layout.microbatches,
        layout.microbatch_rows);
  CHECK(0 <= layout.rows.begin && layout.rows.begin <= layout.rows.end && layout.rows.end <= layout.microbatch_rows,
        "rows {} to {} of {}", layout.rows.begin, layout.rows.end, layout.microbatch_rows);
  for (const auto* positions : {&layout.positions, &layout.document_positions, &layout.stream_positions})
    for (int64_t p : *positions) CHECK(0 <= p && p < seq_len, "position {} of {}", p, seq_len);
}

/// Appends one row to a microbatch.
void AddRow(const Sample& sample, const BatchLayout& layout, Microbatch& microbatch) {
  const auto next_document = [&](int64_t p) { return std::ranges::upper_bound(sample.documents, p); };
  const int64_t last = std::ssize(sample.tokens) - 1;
  // Token `to` as the target of position p.
  const auto target = [&](int64_t p, int64_t to) {
    if (to > last || (!sample.uncounted.empty() && sample.uncounted[static_cast<size_t>(to)] != 0)) return -1;
    const auto next = next_document(p);
    const bool ends = next != sample.documents.end() && *next <= to;
    return ends && layout.isolate_documents ? -1 : sample.tokens[static_cast<size_t>(to)];
  };
  for (int64_t p : layout.positions) {
    microbatch.ids.push_back(sample.tokens[static_cast<size_t>(p)]);
    microbatch.targets.push_back(target(p, p + 1));
    microbatch.positions.push_back(static_cast<int32_t>(p - *std::prev(next_document(p))));
    for (int64_t k = 1; k <= layout.depths; ++k) {
      const auto depth = static_cast<size_t>(k - 1);
      microbatch.further_ids[depth].push_back(sample.tokens[static_cast<size_t>(std::min(p + k, last))]);
      microbatch.further_targets[depth].push_back(target(p, p + k + 1));
    }
  }
  for (int64_t p : layout.DocumentPositions())
    microbatch.document_starts.push_back(static_cast<int32_t>(*std::prev(next_document(p))));
}

/// Appends the numbers of tokens of sequence `row` of the batch. They wrap around after 2^32.
void AddNumbers(int64_t row, int64_t seq_len, const BatchLayout& layout, Microbatch& microbatch) {
  const auto add = [&](const std::vector<int64_t>& positions, std::vector<int32_t>& numbers) {
    for (int64_t p : positions) numbers.push_back(static_cast<int32_t>(static_cast<uint32_t>(row * seq_len + p)));
  };
  add(layout.stream_positions, microbatch.stream_numbers);
  if (layout.query_numbers) add(layout.DocumentPositions(), microbatch.query_numbers);
}

}  // namespace

std::vector<int64_t> AllPositions(int64_t seq_len) {
  std::vector<int64_t> positions(static_cast<size_t>(seq_len));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

void LoadBatch(TokenSource& source, SampleOrder order, const BatchLayout& layout, int64_t step, Batch& batch) {
  batch.step = step;
  LoadSequences(source, order, layout, step * layout.Global(), layout.microbatches, batch);
}

void LoadSequences(TokenSource& source, SampleOrder order, const BatchLayout& layout, int64_t first,
                   int64_t microbatches, Batch& batch) {
  CheckLayout(layout, source.seq_len());
  Sample sample;
  batch.microbatches.resize(static_cast<size_t>(microbatches));
  int64_t row = layout.rows.begin;  // first row of the batch
  for (Microbatch& microbatch : batch.microbatches) {
    for (auto* numbers : {&microbatch.ids, &microbatch.targets, &microbatch.document_starts, &microbatch.positions,
                          &microbatch.stream_numbers, &microbatch.query_numbers})
      numbers->clear();
    for (auto* by_depth : {&microbatch.further_ids, &microbatch.further_targets})
      by_depth->assign(static_cast<size_t>(layout.depths), {});
    for (int64_t r = row; r < row + layout.rows.Extent(); ++r) {
      source.ReadAt(order.first + first + r, order, sample);
      AddRow(sample, layout, microbatch);
      AddNumbers(r, source.seq_len(), layout, microbatch);
    }
    row += layout.microbatch_rows;
  }
}

Batch ValidationBatch(TokenSource& source, const BatchLayout& layout, int64_t index) {
  Batch batch;
  LoadBatch(source, {0, Order::kSequential}, layout, index, batch);
  return batch;
}

BatchLoader::BatchLoader(std::shared_ptr<TokenSource> source, SampleOrder order, BatchLayout layout,
                         const BatchRamp& ramp, int64_t first_step)
    : source_(std::move(source)), order_(order), layout_(std::move(layout)), ramp_(ramp) {
  CheckLayout(layout_, source_->seq_len());
  thread_ = std::thread([this, first_step] { Run(first_step); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::exception_ptr BatchLoader::Await() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ready_; });
  awaited_ms_ += MillisecondsSince(start);
  return error_;
}

const Batch& BatchLoader::Next() {
  Await();
  wait_ms_ = std::exchange(awaited_ms_, 0);
  const std::lock_guard lock(mutex_);
  // An error stays ready: the thread has ended.
  if (error_) std::rethrow_exception(error_);
  std::swap(loading_, current_);
  ready_ = false;
  changed_.notify_all();
  return current_;
}

void BatchLoader::Run(int64_t first_step) {
  for (int64_t step = first_step;; ++step) {
    std::exception_ptr error;
    try {
      loading_.step = step;
      LoadSequences(*source_, order_, layout_, ramp_.SequencesUpTo(step),
                    ramp_.SequencesOf(step + 1) / layout_.microbatch_rows, loading_);
    } catch (...) {
      error = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    error_ = error;
    ready_ = true;
    changed_.notify_all();
    if (error) return;
    changed_.wait(lock, [this] { return stop_ || !ready_; });
    if (stop_) return;
  }
}

}  // namespace espalier
