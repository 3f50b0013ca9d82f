// A supervisor reads what a run appends to metrics.jsonl.
#include "supervise/metrics_tail.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "checkpoint_testing.hpp"

namespace espalier {
namespace {

TEST(MetricsTail, ReadsStepsAndWhatIsSlowOrCorrupt) {
  const TemporaryDirectory folder;
  std::ofstream file(folder.path() + "/metrics.jsonl");
  file << R"({"step":1,"loss":2.5,"time":10})" << std::endl;
  MetricsTail tail(folder.path());
  EXPECT_FALSE(tail.Read()) << "what was there before";
  file << R"({"event":"start","first_step":1,"time":11})"
       << "\n"
       << R"({"event":"slow_link","step":60,"axis":"tp","ranks":[2,3],"ms":9,"peers_ms":3})"
       << "\n"
       << R"({"step":2,"loss":2.4,"time":12})"
       << "\n"
       << R"({"event":"straggler","step":2,"rank":1)" << std::flush;
  EXPECT_TRUE(tail.Read());
  EXPECT_EQ(tail.first_step(), 1);
  EXPECT_EQ(tail.last_step(), 2);
  EXPECT_TRUE(tail.corrupt().empty());
  const auto slow = tail.TakeSlow();
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0]["axis"], "tp");
  EXPECT_TRUE(tail.TakeSlow().empty()) << "each is taken once";
  file << "}\n"
       << R"({"event":"corruption","step":2,"ranks":[1]})" << std::endl;
  EXPECT_TRUE(tail.Read());
  ASSERT_EQ(tail.TakeSlow().size(), 1u) << "a line that was not complete before";
  EXPECT_EQ(tail.corrupt(), std::vector<int>{1});
}

}  // namespace
}  // namespace espalier
