// When transfers of measured tracks begin.
#include <gtest/gtest.h>

#include <map>

#include "program/program_testing.hpp"
#include "test_decks.hpp"
#include "timeline/timeline_testing.hpp"

namespace espalier {
namespace {

/// The tracks of all ranks: every instruction takes 2 us, one after the other in program order, and rank r is r times
/// `late_us` late. Transfers begin when they are ready.
std::vector<Track> Tracks(const Compilation& compilation, double late_us = 1) {
  std::vector<Track> tracks;
  for (int rank = 0; rank < compilation.mesh.Ranks(); ++rank) {
    Track track{rank, 1, std::make_shared<Program>(MakeProgram(compilation, compilation.mesh.CoordinateOf(rank))), {}};
    for (int i = 0; i < std::ssize(track.program->instructions); ++i) {
      const double ready = 2.0 * i + late_us * rank;
      track.spans.push_back({i, ready, ready, ready + 2});
    }
    tracks.push_back(track);
  }
  return tracks;
}

const Op& OpOf(const Track& track, const Span& span) {
  return track.program->graph->op(track.program->instructions[static_cast<size_t>(span.instruction)].op);
}

TEST(MeetPeers, CollectivesBeginWhenTheLastMemberIsReady) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("112")), 2, Purpose::kTrain);
  std::vector<Track> tracks = Tracks(compilation);
  MeetPeers(tracks);
  int transfers = 0;
  for (size_t i = 0; i < tracks[0].spans.size(); ++i) {
    const Span &first = tracks[0].spans[i], &second = tracks[1].spans[i];
    const bool transfer = IsCommunication(OpOf(tracks[0], first).kind);
    transfers += transfer;
    EXPECT_EQ(first.begin_us, first.ready_us + (transfer ? 1 : 0)) << "waits for rank 1";
    EXPECT_EQ(second.begin_us, second.ready_us) << "is the last";
  }
  EXPECT_GT(transfers, 10);
}

TEST(MeetPeers, NoTransferBeginsAfterItsEnd) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("112")), 2, Purpose::kTrain);
  std::vector<Track> tracks = Tracks(compilation, 3);
  MeetPeers(tracks);
  for (const Span& span : tracks[0].spans)
    if (IsCollective(OpOf(tracks[0], span).kind)) EXPECT_EQ(span.begin_us, span.end_us) << "rank 1 is 3 us late";
}

/// The spans of one kind of message end on a stage, in program order.
std::vector<Span> SpansOf(const Track& track, OpKind kind) {
  std::vector<Span> spans;
  for (const Span& span : track.spans)
    if (OpOf(track, span).kind == kind) spans.push_back(span);
  return spans;
}

TEST(MeetPeers, MessagesBeginWhenBothEndsAreReady) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("211")), 2, Purpose::kTrain);
  for (const double delay : {-5.0, 5.0}) {
    std::vector<Track> tracks = Tracks(compilation);
    // Recvs are ready `delay` after their sends, which take 10 us.
    const std::vector<Span> sends = SpansOf(tracks[0], OpKind::kSend);
    std::map<int, Span> recvs;
    size_t next = 0;
    for (Span& span : tracks[1].spans)
      if (OpOf(tracks[1], span).kind == OpKind::kRecv) {
        const double ready = 1000 + sends.at(next++).ready_us + delay;
        span = {span.instruction, ready, ready, ready + 20};
      }
    for (Span& span : tracks[0].spans)
      if (OpOf(tracks[0], span).kind == OpKind::kSend)
        span = {span.instruction, 1000 + span.ready_us, 1000 + span.ready_us, 1010 + span.ready_us};
    MeetPeers(tracks);
    for (const Span& send : SpansOf(tracks[0], OpKind::kSend))
      EXPECT_EQ(send.begin_us - send.ready_us, delay > 0 ? delay : 0);
    for (const Span& recv : SpansOf(tracks[1], OpKind::kRecv))
      EXPECT_EQ(recv.begin_us - recv.ready_us, delay > 0 ? 0 : -delay);
  }
}

TEST(MeetPeers, ASendThatEndedEarlyHadABuffer) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("211")), 2, Purpose::kTrain);
  std::vector<Track> tracks = Tracks(compilation);
  for (Span& span : tracks[1].spans)
    if (OpOf(tracks[1], span).kind == OpKind::kRecv) span = {span.instruction, 5000, 5000, 5001};
  MeetPeers(tracks);
  for (const Span& send : SpansOf(tracks[0], OpKind::kSend)) EXPECT_EQ(send.begin_us, send.ready_us);
  for (const Span& recv : SpansOf(tracks[1], OpKind::kRecv)) EXPECT_EQ(recv.begin_us, 5000);
}

TEST(MeetPeers, KernelsStayAsTheyAre) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("222")), 8, Purpose::kTrain);
  std::vector<Track> tracks = Tracks(compilation);
  const std::vector<Track> before = tracks;
  MeetPeers(tracks);
  for (size_t t = 0; t < tracks.size(); ++t)
    for (size_t s = 0; s < tracks[t].spans.size(); ++s) {
      const Span &span = tracks[t].spans[s], &was = before[t].spans[s];
      EXPECT_EQ(span.ready_us, was.ready_us);
      EXPECT_EQ(span.end_us, was.end_us);
      EXPECT_GE(span.begin_us, span.ready_us);
      EXPECT_LE(span.begin_us, span.end_us);
      if (!IsCommunication(OpOf(tracks[t], span).kind)) EXPECT_EQ(span.begin_us, was.begin_us);
    }
}

TEST(MeetPeers, TakesASubsetOfTheRanks) {
  const Compilation compilation = Compile(SmallDeck(DegreesOf("212")), 4, Purpose::kTrain);
  std::vector<Track> all = Tracks(compilation), pipeline = {all[0], all[2]};
  MeetPeers(pipeline);
  for (const Span& span : pipeline[0].spans)
    if (const Op& op = OpOf(pipeline[0], span); IsCollective(op.kind) && op.Axes() == AxisSet{Axis::kTp})
      EXPECT_EQ(span.begin_us, span.ready_us) << "its peer is not there";
}

}  // namespace
}  // namespace espalier
