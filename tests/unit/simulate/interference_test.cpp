// Clocks, rates and shares of ports against times computed by hand. All numbers are sums of powers of two, so that they
// are exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/util/error.hpp"
#include "simulate/hand_made.hpp"

namespace espalier {
namespace {

/// Kernels run at half speed during transfers in the node, at three quarters during those in the network.
Cluster HalfSpeed() {
  Cluster cluster;
  cluster.node_slowdown = 0.5;
  cluster.network_slowdown = 0.25;
  return cluster;
}

// In from 0; out from 4 on, both at half the rate until in ends: after 4, 4 of 8 us of it are left, which take 8.
TEST(Clocks, CopiesBothWaysShareTheMemoryOfTheHost) {
  HandMade world(1, 1);
  world.Kernel(0, 4);
  world.Copy(0, OpKind::kCopyIn, 8, 2);
  world.Copy(0, OpKind::kCopyOut, 16, 2, {{Lane::kCompute, 1}});
  world.Kernel(0, 2, {{Lane::kCopyIn, 1}});
  const Simulation s = world.Run();
  ExpectSpan(s, 0, 1, 0, 0, 12);
  ExpectSpan(s, 0, 2, 4, 4, 24);  // 4 of 16 us are done at 12
  ExpectSpan(s, 0, 3, 12, 12, 14);
  const Breakdown& b = s.classes[0].breakdown;
  EXPECT_EQ(b.exposed_us[CommAxis::kHost], 8 + 10) << "the kernel waits for in, and the end of the step for out";
  EXPECT_EQ(b.hidden_us[CommAxis::kHost], 4 + 2);
  SimulateOptions alone;
  alone.interference = false;
  ExpectSpan(world.Run(alone), 0, 2, 4, 4, 20);
}

TEST(Clocks, LanesRunSideBySideAndWait) {
  HandMade world(1, 2);
  const int gather = world.Collective(Axis::kTp);
  for (int rank : {0, 1}) {
    world.Kernel(rank, rank == 0 ? 10 : 4);
    world.Join(rank, gather, Lane::kTp, 8, Port::kNone, {{Lane::kCompute, 1}});
    world.Kernel(rank, 5);
    world.Kernel(rank, 1, {{Lane::kTp, 1}});
  }
  const Simulation s = world.Run();
  ExpectSpan(s, 0, 1, 10, 10, 18);
  ExpectSpan(s, 1, 1, 4, 10, 18);
  ExpectSpan(s, 1, 2, 4, 4, 9);
  ExpectSpan(s, 1, 3, 18, 18, 19);
  EXPECT_EQ(s.step_us, 19);
  EXPECT_EQ(s.events, 8);
  const Breakdown& b = s.classes[1].breakdown;
  EXPECT_EQ(b.compute_us, 10);
  EXPECT_EQ(b.exposed_us[CommAxis::kTp], 8);
  EXPECT_EQ(b.hidden_us[CommAxis::kTp], 0);
  EXPECT_EQ(b.idle_us, 1);  // from 9 to 10 it waits for the other rank
  EXPECT_EQ(s.classes[0].breakdown.hidden_us[CommAxis::kTp], 5);
  EXPECT_EQ(s.classes[0].breakdown.exposed_us[CommAxis::kTp], 3);
  EXPECT_EQ(s.classes[0].by_source_us[CostSource::kMeasured], 16);
  EXPECT_EQ(s.classes[0].by_source_us[CostSource::kFormula], 8);
}

TEST(Clocks, AMessageBeginsWhenBothAreThere) {
  HandMade world(2, 1);
  const int message = world.Message(0, 1);
  world.Kernel(0, 3);
  world.Send(0, message, 4, Port::kNone, {{Lane::kCompute, 1}});
  world.Recv(1, message, 4);
  world.Kernel(1, 2, {{Lane::kPpRecv, 1}});
  const Simulation s = world.Run();
  ExpectSpan(s, 1, 0, 0, 3, 7);
  ExpectSpan(s, 0, 1, 3, 3, 7);
  EXPECT_EQ(s.step_us, 9);
  EXPECT_EQ(s.classes[0].end_us, 7);
  EXPECT_EQ(s.Slowest().rank, 1);
}

TEST(Interference, AKernelSlowsDownDuringATransfer) {
  HandMade world(1, 2);
  const int reduce = world.Collective(Axis::kTp);
  for (int rank : {0, 1}) {
    world.Kernel(rank, 2);
    world.Join(rank, reduce, Lane::kTp, 4, Port::kNode, {{Lane::kCompute, 1}});
    world.Kernel(rank, 8);
  }
  const Simulation s = world.Run({}, HalfSpeed());
  ExpectSpan(s, 0, 1, 2, 2, 6);
  ExpectSpan(s, 0, 2, 2, 2, 12);  // 2 of 8 are done at 6
  SimulateOptions alone;
  alone.interference = false;
  EXPECT_EQ(world.Run(alone, HalfSpeed()).step_us, 10);
}

TEST(Interference, BothPortsSlowAKernelDown) {
  HandMade world(1, 2);
  const int node = world.Collective(Axis::kTp), network = world.Collective(Axis::kTp);
  for (int rank : {0, 1}) {
    world.Join(rank, node, Lane::kTp, 8, Port::kNode);
    world.Join(rank, network, Lane::kDp, 4, Port::kNetwork);
    world.Kernel(rank, 6);
  }
  // 1/2 x 3/4 until 4, when 1.5 of 6 is done; 1/2 until 8, when 3.5 is; then alone.
  ExpectSpan(world.Run({}, HalfSpeed()), 0, 2, 0, 0, 10.5);
}

TEST(Interference, TransfersShareAPort) {
  HandMade world(1, 2);
  const int a = world.Collective(Axis::kTp), b = world.Collective(Axis::kTp), c = world.Collective(Axis::kTp);
  for (int rank : {0, 1}) {
    world.Join(rank, a, Lane::kTp, 4, Port::kNode);
    world.Join(rank, b, Lane::kDp, 8, Port::kNode);
    world.Join(rank, c, Lane::kCp, 8, Port::kNetwork);
  }
  const Simulation s = world.Run({}, HalfSpeed());
  ExpectSpan(s, 0, 0, 0, 0, 8);   // half of the port's rate
  ExpectSpan(s, 0, 1, 0, 0, 12);  // 4 of 8 are done then, and the port is free
  ExpectSpan(s, 0, 2, 0, 0, 8);   // another port
}

TEST(Interference, ATransferGoesAtTheSmallestShareOfItsMembers) {
  // Ranks 0 and 2 exchange over pp. This halves the speed of the kernel of rank 0, which ends at 4; from then on rank 0
  // shares its port with tp.
  HandMade world(2, 2);
  const int tp = world.Collective(Axis::kTp), pp = world.Collective(Axis::kPp);
  for (int rank : {0, 1}) {
    world.Kernel(rank, 2);
    world.Join(rank, tp, Lane::kTp, 4, Port::kNode, {{Lane::kCompute, 1}});
  }
  for (int rank : {0, 2}) world.Join(rank, pp, Lane::kDp, 8, Port::kNode);
  const Simulation s = world.Run({}, HalfSpeed());
  ExpectSpan(s, 2, 0, 0, 0, 12);  // 4 alone, 4 at half of the port
  ExpectSpan(s, 1, 1, 2, 4, 12);
}

TEST(Interference, ASendAndARecvDoNotShare) {
  HandMade world(2, 1);
  const int down = world.Message(0, 1), up = world.Message(1, 0);
  world.Send(0, down, 4, Port::kNetwork);
  world.Recv(0, up, 4, Port::kNetwork);
  world.Send(1, up, 4, Port::kNetwork);
  world.Recv(1, down, 4, Port::kNetwork);
  EXPECT_EQ(world.Run({}, HalfSpeed()).step_us, 4);
}

TEST(Interference, SlowLinksSlowTheirTransfersAlone) {
  HandMade world(1, 2);
  const int reduce = world.Collective(Axis::kTp);
  for (int rank : {0, 1}) {
    world.Kernel(rank, 4);
    world.Join(rank, reduce, Lane::kTp, 2, Port::kNone, {{Lane::kCompute, 1}});
  }
  SimulateOptions options;
  options.slow = {{Slow::What::kLinks, 1, 1, 3}};
  EXPECT_EQ(world.Run(options).step_us, 10);
  options.slow = {{Slow::What::kCompute, 1, 1, 3}};
  EXPECT_EQ(world.Run(options).step_us, 14);
  options.slow = {{Slow::What::kCompute, 1, 1, 3}, {Slow::What::kLinks, 0, 0, 2}};
  EXPECT_EQ(world.Run(options).step_us, 16);
}

TEST(Clocks, ADeadlockIsReportedWithRanksAndInstructions) {
  HandMade world(2, 2);
  const int tp = world.Collective(Axis::kTp), message = world.Message(0, 1);
  world.Kernel(0, 1);
  world.Join(0, tp, Lane::kTp, 1, Port::kNone, {{Lane::kCompute, 1}});
  world.Recv(3, message, 1);
  world.Kernel(3, 1, {{Lane::kPpRecv, 1}});
  try {
    world.Run();
    ADD_FAILURE() << "it ends";
  } catch (const InvariantError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("deadlock after 1.000 us"),
                               testing::HasSubstr("rank 0, lane tp, instruction 1 (all_reduce, role F, microbatch 0, "
                                                  "layer 1): waits for rank 1"),
                               testing::HasSubstr("rank 3, lane pp-recv, instruction 0 (recv"),
                               testing::HasSubstr("waits for rank 1"),
                               testing::HasSubstr("rank 3, lane compute, instruction 1 (add, role F, microbatch 0, "
                                                  "layer 1): waits for instruction 1 of lane pp-recv, which has "
                                                  "finished 0")));
  }
}

TEST(Clocks, OtherOpsDoNotMeet) {
  HandMade world(1, 2);
  const int a = world.Collective(Axis::kTp), b = world.Collective(Axis::kTp);
  world.Join(0, a, Lane::kTp, 1);
  world.Join(1, b, Lane::kTp, 1);
  EXPECT_THROW(world.Run(), InvariantError);
  HandMade pair(2, 1);
  const int one = pair.Message(0, 1), two = pair.Message(0, 1);
  pair.Send(0, one, 1);
  pair.Recv(1, two, 1);
  EXPECT_THROW(pair.Run(), InvariantError);
}

TEST(Clocks, CostsMustBeTimes) {
  for (double us : {-1.0, std::nan(""), HUGE_VAL}) {
    HandMade world(1, 1);
    world.Kernel(0, us);
    EXPECT_THROW(world.Run(), InvariantError);
  }
}

}  // namespace
}  // namespace espalier
