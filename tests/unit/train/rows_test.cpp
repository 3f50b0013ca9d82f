// Windows of documents, and how they share rows.
#include "train/evaluating/rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace espalier {
namespace {

using testing::ElementsAre;

std::vector<DocumentWindow> All(int64_t tokens, int64_t seq_len, int64_t stride) {
  DocumentWindows windows(tokens, seq_len, stride);
  std::vector<DocumentWindow> all;
  while (const std::optional<DocumentWindow> window = windows.Next()) all.push_back(*window);
  return all;
}

Document Counting(int64_t tokens, int32_t first) {
  Document document;
  document.tokens.resize(static_cast<size_t>(tokens));
  std::iota(document.tokens.begin(), document.tokens.end(), first);
  return document;
}

TEST(DocumentWindows, CountEachTargetOnce) {
  for (const int64_t tokens : {0, 1, 2, 7, 8, 9, 16, 17, 30})
    for (const int64_t stride : {1, 3, 8}) {
      std::vector<int> counted(static_cast<size_t>(tokens), 0);
      for (const DocumentWindow& window : All(tokens, 8, stride)) {
        ASSERT_LE(window.end - window.begin, 9);
        ASSERT_LE(window.end, tokens);
        for (int64_t i = std::max(window.counted, window.begin + 1); i < window.end; ++i)
          ++counted[static_cast<size_t>(i)];
        // A token is predicted from at least seq_len - stride tokens, or from all there are.
        if (window.counted < window.end)
          ASSERT_GE(window.counted - window.begin, std::min<int64_t>(8 - stride, window.counted));
      }
      for (int64_t i = 0; i < tokens; ++i)
        ASSERT_EQ(counted[static_cast<size_t>(i)], i == 0 ? 0 : 1) << tokens << " " << i;
    }
}

TEST(RowFiller, PacksWindowsOfDocuments) {
  RowFiller filler(4, 4);
  Row row;
  Owners owners;
  filler.Begin(0, Counting(2, 10));
  EXPECT_TRUE(filler.Fill(row, owners));
  filler.Begin(1, Counting(3, 20));
  EXPECT_TRUE(filler.Fill(row, owners));
  filler.Begin(2, Counting(7, 30));
  EXPECT_FALSE(filler.Fill(row, owners));
  EXPECT_THAT(row.tokens, ElementsAre(10, 11, 20, 21, 22));
  EXPECT_THAT(row.documents, ElementsAre(0, 2));
  EXPECT_THAT(row.uncounted, ElementsAre(1, 0, 1, 0, 0));
  EXPECT_THAT(owners, ElementsAre(0, -1, 1, 1, -1));
  Row next, last;
  Owners of_next, of_last;
  EXPECT_FALSE(filler.Fill(next, of_next));
  EXPECT_THAT(next.tokens, ElementsAre(30, 31, 32, 33, 34));
  EXPECT_THAT(of_next, ElementsAre(2, 2, 2, 2, -1));
  EXPECT_TRUE(filler.Fill(last, of_last));
  EXPECT_THAT(last.tokens, ElementsAre(34, 35, 36));
  EXPECT_THAT(of_last, ElementsAre(2, 2, -1));
}

TEST(RowFiller, MaskedTargetsHaveNoOwner) {
  RowFiller filler(4, 4);
  Row row;
  Owners owners;
  Document document = Counting(4, 1);
  document.uncounted = {0, 1, 0, 1};
  filler.Begin(7, std::move(document));
  EXPECT_TRUE(filler.Fill(row, owners));
  EXPECT_THAT(owners, ElementsAre(-1, 7, -1, -1));
  EXPECT_THAT(row.uncounted, ElementsAre(1, 1, 0, 1));
}

}  // namespace
}  // namespace espalier
