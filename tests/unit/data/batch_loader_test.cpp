// Batches: which rows and positions a rank holds, and reading ahead.
#include "espalier/data/batch_loader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "data_testing.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

BatchLayout Layout(int64_t microbatches, int64_t rows, Range mine, std::vector<int64_t> positions) {
  return {microbatches, rows, mine, std::move(positions)};
}

TEST(LoadBatchTest, RowsOfStepsAndMicrobatches) {
  CountingSource source(11, 3);
  Batch batch;
  LoadBatch(source, {0, Order::kSequential}, Layout(2, 3, {0, 3}, AllPositions(3)), 1, batch);
  ASSERT_EQ(batch.microbatches.size(), 2u);
  // Samples 6, 7, 8 and 9, 10, 0: the second epoch begins.
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1018, 1019, 1020, 1021, 1022, 1023, 1024, 1025, 1026));
  EXPECT_THAT(batch.microbatches[1].ids, ElementsAre(1027, 1028, 1029, 1030, 1031, 1032, 1000, 1001, 1002));
  EXPECT_THAT(batch.microbatches[1].targets, ElementsAre(1028, 1029, 1030, 1031, 1032, 1033, 1001, 1002, 1003));
}

TEST(LoadBatchTest, ARankHoldsItsRowsAndPositions) {
  CountingSource source(11, 4);
  Batch batch;
  LoadBatch(source, {0, Order::kSequential}, Layout(2, 3, {1, 3}, {3, 0}), 0, batch);
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1007, 1004, 1011, 1008));
  EXPECT_THAT(batch.microbatches[0].targets, ElementsAre(1008, 1005, 1012, 1009));
  EXPECT_THAT(batch.microbatches[1].ids, ElementsAre(1019, 1016, 1023, 1020));
  LoadBatch(source, {0, Order::kSequential}, Layout(2, 3, {3, 3}, AllPositions(4)), 0, batch);
  EXPECT_TRUE(batch.microbatches[1].ids.empty());
  EXPECT_THROW(LoadBatch(source, {}, Layout(2, 3, {1, 4}, AllPositions(4)), 0, batch), InvariantError);
  EXPECT_THROW(LoadBatch(source, {}, Layout(2, 3, {1, 3}, {4}), 0, batch), InvariantError);
}

// Tokens are numbered over the batch of a step, independently of step, microbatch and rank.
TEST(LoadBatchTest, TokensHaveNumbersInTheBatchForDropout) {
  CountingSource source(11, 4);
  BatchLayout layout = Layout(2, 3, {1, 3}, {3, 0});
  layout.stream_positions = {0};
  Batch batch;
  LoadBatch(source, {0, Order::kSequential}, layout, 5, batch);
  EXPECT_THAT(batch.microbatches[0].stream_numbers, ElementsAre(4, 8));
  EXPECT_THAT(batch.microbatches[1].stream_numbers, ElementsAre(16, 20));
  EXPECT_TRUE(batch.microbatches[0].query_numbers.empty());
  layout.query_numbers = true;
  LoadSequences(source, {0, Order::kSequential}, layout, 7, 2, batch);
  EXPECT_THAT(batch.microbatches[1].query_numbers, ElementsAre(19, 16, 23, 20));
  layout.document_positions = AllPositions(4);
  LoadBatch(source, {0, Order::kSequential}, layout, 0, batch);
  EXPECT_THAT(batch.microbatches[0].query_numbers, ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
}

// Depth k has k valid targets less per sequence than the model itself; with isolated documents, per document.
TEST(LoadBatchTest, DepthsReadTokensAheadAndPredictThoseAfterThem) {
  CountingSource source(11, 6);
  source.document_ = 4;
  Batch batch;
  BatchLayout layout = Layout(1, 2, {0, 2}, {5, 0, 2, 4, 3, 1});
  layout.depths = 2;
  // Sample 0 is 1000 to 1006, documents begin at 1000 and 1004; sample 1 is 1006 to 1012, with 1008 and 1012.
  LoadBatch(source, {0, Order::kSequential}, layout, 0, batch);
  const Microbatch& microbatch = batch.microbatches[0];
  ASSERT_EQ(microbatch.further_ids.size(), 2u);
  EXPECT_THAT(microbatch.further_ids[0],
              ElementsAre(1006, 1001, 1003, 1005, 1004, 1002, 1012, 1007, 1009, 1011, 1010, 1008));
  EXPECT_THAT(microbatch.further_targets[0],
              ElementsAre(-1, 1002, 1004, 1006, 1005, 1003, -1, 1008, 1010, 1012, 1011, 1009));
  EXPECT_THAT(microbatch.further_ids[1],
              ElementsAre(1006, 1002, 1004, 1006, 1005, 1003, 1012, 1008, 1010, 1012, 1011, 1009));
  EXPECT_THAT(microbatch.further_targets[1],
              ElementsAre(-1, 1003, 1005, -1, 1006, 1004, -1, 1009, 1011, -1, 1012, 1010));
  layout.isolate_documents = true;
  LoadBatch(source, {0, Order::kSequential}, layout, 0, batch);
  EXPECT_THAT(batch.microbatches[0].targets,
              ElementsAre(1006, 1001, 1003, 1005, -1, 1002, -1, 1007, 1009, 1011, 1010, -1));
  EXPECT_THAT(batch.microbatches[0].further_targets[0],
              ElementsAre(-1, 1002, -1, 1006, -1, 1003, -1, -1, 1010, -1, 1011, -1));
  EXPECT_THAT(batch.microbatches[0].further_targets[1],
              ElementsAre(-1, 1003, -1, -1, -1, -1, -1, -1, 1011, -1, -1, -1));
  layout.depths = 0;
  LoadBatch(source, {0, Order::kSequential}, layout, 0, batch);
  EXPECT_TRUE(batch.microbatches[0].further_ids.empty() && batch.microbatches[0].further_targets.empty());
}

TEST(LoadBatchTest, DocumentsEndTargetsIfTheyAreIsolated) {
  CountingSource source(11, 6);
  source.document_ = 4;
  Batch batch;
  BatchLayout layout = Layout(1, 2, {0, 2}, {5, 0, 1, 4});
  // Sample 0 is 1000 to 1006, documents begin at 1000 and 1004; sample 1 is 1006 to 1012, with 1008 and 1012.
  LoadBatch(source, {0, Order::kSequential}, layout, 0, batch);
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1005, 1000, 1001, 1004, 1011, 1006, 1007, 1010));
  EXPECT_THAT(batch.microbatches[0].targets, ElementsAre(1006, 1001, 1002, 1005, 1012, 1007, 1008, 1011));
  EXPECT_THAT(batch.microbatches[0].document_starts, ElementsAre(4, 0, 0, 4, 2, 0, 0, 2));
  layout.isolate_documents = true;
  LoadBatch(source, {0, Order::kSequential}, layout, 0, batch);
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1005, 1000, 1001, 1004, 1011, 1006, 1007, 1010));
  EXPECT_THAT(batch.microbatches[0].targets, ElementsAre(1006, 1001, 1002, 1005, -1, 1007, -1, 1011));
  EXPECT_THAT(batch.microbatches[0].document_starts, ElementsAre(4, 0, 0, 4, 2, 0, 0, 2));
}

// Two layouts of the same global batch: 4 microbatches of 3 rows on one rank, 2 of 6 on three ranks.
TEST(LoadBatchTest, EveryLayoutSeesTheSameSamples) {
  CountingSource source(101, 5);
  const auto ids_of = [&](int64_t microbatches, int64_t rows, int64_t ranks, int64_t step) {
    std::vector<std::vector<int32_t>> found(static_cast<size_t>(microbatches));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Batch batch;
      const int64_t mine = rows / ranks;
      LoadBatch(source, {9, Order::kShuffled},
                Layout(microbatches, rows, {rank * mine, (rank + 1) * mine}, AllPositions(5)), step, batch);
      for (size_t j = 0; j < found.size(); ++j)
        found[j].insert(found[j].end(), batch.microbatches[j].ids.begin(), batch.microbatches[j].ids.end());
    }
    std::vector<int32_t> ids;
    for (const auto& microbatch : found) ids.insert(ids.end(), microbatch.begin(), microbatch.end());
    return ids;
  };
  for (int64_t step : {0, 7, 8, 9}) {
    EXPECT_EQ(ids_of(4, 3, 1, step), ids_of(2, 6, 3, step));
    EXPECT_EQ(ids_of(4, 3, 1, step), ids_of(1, 12, 4, step));
  }
  EXPECT_NE(ids_of(4, 3, 1, 0), ids_of(4, 3, 1, 1));
}

TEST(LoadBatchTest, ValidationIsSequential) {
  CountingSource source(7, 2);
  const Batch batch = ValidationBatch(source, Layout(1, 4, {2, 4}, AllPositions(2)), 1);
  // Positions 6 and 7: the last sample and, again, the first.
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1012, 1013, 1000, 1001));
}

TEST(BatchLoaderTest, GivesEveryStepInOrderFromAnyStart) {
  const BatchLayout layout = Layout(3, 2, {1, 2}, AllPositions(3));
  BatchLoader loader(std::make_unique<CountingSource>(13, 3), {5, Order::kShuffled}, layout, BatchRamp(6), 4);
  CountingSource plain(13, 3);
  for (int64_t step = 4; step < 40; ++step) {
    Batch expected;
    LoadBatch(plain, {5, Order::kShuffled}, layout, step, expected);
    const Batch& batch = loader.Next();
    ASSERT_EQ(batch.step, step);
    for (size_t j = 0; j < 3; ++j) {
      ASSERT_EQ(batch.microbatches[j].ids, expected.microbatches[j].ids);
      ASSERT_EQ(batch.microbatches[j].targets, expected.microbatches[j].targets);
    }
  }
}

// Steps of 2, 2, 6, 6, 10, 10, ... sequences: together they are the positions in order, on two ranks with one row each.
TEST(BatchLoaderTest, StepsOfARampFollowOneAnotherWithoutGaps) {
  const BatchRamp ramp(Deck::Batch{10, 1, 2, 4, 2});
  for (const int64_t first_step : {0, 1, 3, 5, 9}) {
    const auto loader_of = [&](Range mine) {
      return BatchLoader(std::make_unique<CountingSource>(1000, 1), {0, Order::kSequential, 7},
                         Layout(5, 2, mine, AllPositions(1)), ramp, first_step);
    };
    BatchLoader even = loader_of({0, 1}), odd = loader_of({1, 2});
    int32_t next = static_cast<int32_t>(1000 + 7 + ramp.SequencesUpTo(first_step));
    for (int64_t step = first_step; step < 12; ++step) {
      const Batch &mine = even.Next(), &theirs = odd.Next();
      ASSERT_EQ(mine.step, step);
      ASSERT_EQ(std::ssize(mine.microbatches) * 2, ramp.SequencesOf(step + 1));
      ASSERT_EQ(theirs.microbatches.size(), mine.microbatches.size());
      for (size_t j = 0; j < mine.microbatches.size(); ++j) {
        ASSERT_THAT(mine.microbatches[j].ids, ElementsAre(next++));
        ASSERT_THAT(theirs.microbatches[j].ids, ElementsAre(next++));
      }
    }
  }
}

TEST(BatchLoaderTest, ABatchStaysWhileTheNextIsRead) {
  auto source = std::make_unique<CountingSource>(50, 2);
  CountingSource& reads = *source;
  BatchLoader loader(std::move(source), {0, Order::kSequential}, Layout(1, 2, {0, 2}, AllPositions(2)), BatchRamp(2),
                     0);
  const Batch& batch = loader.Next();
  // Two rows per batch: batch 1 is read while batch 0 is in use, and no more.
  while (reads.reads_ < 4) std::this_thread::yield();
  EXPECT_THAT(batch.microbatches[0].ids, ElementsAre(1000, 1001, 1002, 1003));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(reads.reads_, 4);
  EXPECT_THAT(loader.Next().microbatches[0].ids, ElementsAre(1004, 1005, 1006, 1007));
  EXPECT_GE(loader.wait_ms(), 0.0);
}

TEST(BatchLoaderTest, EndsWhileReadingAndWhileWaiting) {
  for (int i = 0; i < 20; ++i) {
    auto source = std::make_unique<CountingSource>(50, 2);
    source->delay_ = std::chrono::microseconds(300 * (i % 3));
    BatchLoader loader(std::move(source), {1, Order::kShuffled}, Layout(1, 3, {0, 3}, AllPositions(2)), BatchRamp(3),
                       0);
    for (int n = 0; n < i % 4; ++n) loader.Next();
  }
}

TEST(BatchLoaderTest, ErrorsReachTheCallerAfterTheGoodBatches) {
  auto source = std::make_unique<CountingSource>(50, 2);
  source->fail_at_ = 5;
  BatchLoader loader(std::move(source), {1, Order::kShuffled}, Layout(1, 2, {0, 2}, AllPositions(2)), BatchRamp(2), 0);
  EXPECT_EQ(loader.Next().step, 0);
  EXPECT_EQ(loader.Next().step, 1);
  EXPECT_THAT(Message([&] { loader.Next(); }), HasSubstr("token 3 is 9"));
  EXPECT_THAT(Message([&] { loader.Next(); }), HasSubstr("token 3 is 9"));
}

}  // namespace
}  // namespace espalier
