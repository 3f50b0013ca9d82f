// The switches of the emulated runtime. Each test has a program with a planted bug: as work runs by default
// the bug shows nowhere; with the switch it does, and the same program without the bug is right.
#include "runtime.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "emulate.hpp"
#include "espalier/util/error.hpp"
#include "executor/cuda/handles.hpp"

namespace espalier::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kSeeds = 30;

class Emulated : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void Set(const std::string& name, const std::string& value) {
    set_.push_back("ESPALIER_EMULATED_" + name);
    setenv(set_.back().c_str(), value.c_str(), 1);
  }

  /// The same program, as work runs by default and in random orders; true if each gave `wanted`.
  template <typename F>
  bool AlwaysGives(int wanted, F program) {
    bool always = program() == wanted;
    EXPECT_TRUE(always) << "as it is issued";
    for (int seed = 0; seed < kSeeds; ++seed) {
      Set("STREAMS", "random:" + std::to_string(seed));
      always = program() == wanted && always;
      unsetenv("ESPALIER_EMULATED_STREAMS");
    }
    return always;
  }

 private:
  std::vector<std::string> set_;
};

enum class Bug : uint8_t { kNone, kPlanted };

/// Two streams and two words of memory, which hold 0.
class TwoStreams {
 public:
  TwoStreams() {
    CUDA_CALL(cudaMemset(words_.data(), 0, 2 * sizeof(int)));
    CUDA_CALL(cudaStreamSynchronize(nullptr));  // for which no other stream waits
  }

  /// The second stream copies word 0 to word 1 once the first has set word 0 to 7; with the bug it does not wait.
  void Issue(Bug bug) {
    Wait(first_, second_);
    emulation::issue(first_.Get(), [this] { Word(0) = 7; });
    if (bug == Bug::kNone) Wait(first_, second_);
    emulation::issue(second_.Get(), [this] { Word(1) = Word(0); });
    Wait(second_, first_);
  }
  int Result() {
    CUDA_CALL(cudaStreamSynchronize(first_.Get()));
    return Word(1);
  }

  void Replay(Bug bug) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_CALL(cudaStreamBeginCapture(first_.Get(), cudaStreamCaptureModeThreadLocal));
    Issue(bug);
    CUDA_CALL(cudaStreamEndCapture(first_.Get(), &graph));
    CUDA_CALL(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CALL(cudaGraphLaunch(executable, first_.Get()));
    CUDA_CALL(cudaStreamSynchronize(first_.Get()));
    CUDA_CALL(cudaGraphExecDestroy(executable));
    CUDA_CALL(cudaGraphDestroy(graph));
  }

  Stream& first() { return first_; }
  int& Word(size_t i) { return reinterpret_cast<int*>(words_.data())[i]; }

 private:
  void Wait(const Stream& for_this, const Stream& waiting) {
    CUDA_CALL(cudaEventRecord(event_.Get(), for_this.Get()));
    CUDA_CALL(cudaStreamWaitEvent(waiting.Get(), event_.Get(), 0));
  }

  DeviceMemory words_{2 * sizeof(int)};
  Stream first_{Urgency::kLow}, second_{Urgency::kLow};
  Event event_{Timing::kOff};
};

int ResultOfStreams(Bug bug) {
  TwoStreams streams;
  streams.Issue(bug);
  return streams.Result();
}
int ResultOfGraph(Bug bug) {
  TwoStreams streams;
  streams.Replay(bug);
  return streams.Result();
}

TEST_F(Emulated, RandomOrdersOfStreamsFindAWaitThatIsMissing) {
  EXPECT_TRUE(AlwaysGives(7, [] { return ResultOfStreams(Bug::kNone); }));
  EXPECT_FALSE(AlwaysGives(7, [] { return ResultOfStreams(Bug::kPlanted); }));
}

TEST_F(Emulated, RandomOrdersOfAGraphFindAnEdgeThatIsMissing) {
  EXPECT_TRUE(AlwaysGives(7, [] { return ResultOfGraph(Bug::kNone); }));
  EXPECT_FALSE(AlwaysGives(7, [] { return ResultOfGraph(Bug::kPlanted); }));
}

TEST_F(Emulated, ASeedRepeatsAnOrder) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    const auto again = [&] {
      Set("STREAMS", "random:none");
      ResultOfGraph(Bug::kNone);  // draws from another seed
      Set("STREAMS", "random:" + std::to_string(seed));
      return ResultOfGraph(Bug::kPlanted);
    };
    EXPECT_EQ(again(), again());
  }
}

TEST_F(Emulated, LateStreamsFindAHostThatDoesNotWait) {
  const auto result = [](Bug bug) {
    TwoStreams streams;
    streams.Issue(Bug::kNone);
    return bug == Bug::kNone ? streams.Result() : streams.Word(1);
  };
  EXPECT_EQ(result(Bug::kPlanted), 7);
  Set("STREAMS", "late");
  EXPECT_EQ(result(Bug::kNone), 7);
  EXPECT_EQ(result(Bug::kPlanted), 0);
}

TEST_F(Emulated, UnreadyEventsFindAnErrorThatNobodyTakesAway) {
  const auto run = [](Bug bug) {
    TwoStreams streams;
    const Event event(Timing::kOff);
    CUDA_CALL(cudaEventRecord(event.Get(), streams.first().Get()));
    int queries = 0;
    for (; cudaEventQuery(event.Get()) == cudaErrorNotReady; ++queries)
      if (bug == Bug::kNone) cudaGetLastError();
    streams.Issue(Bug::kNone);
    EXPECT_EQ(streams.Result(), 7);
    return queries;
  };
  EXPECT_EQ(run(Bug::kPlanted), 0);
  Set("STREAMS", "not-ready:3");
  EXPECT_EQ(run(Bug::kNone), 3);
  EXPECT_THAT([&] { run(Bug::kPlanted); }, ThrowsMessage<std::runtime_error>(HasSubstr("cudaErrorNotReady")));
  cudaGetLastError();
}

TEST_F(Emulated, ACapabilityFindsALaunchThatTakesTooMuchSharedMemory) {
  constexpr int kBytes = 150 << 10;
  const auto launch = [] {
    Launch(
        +[] {}, 1, 32, kBytes, nullptr);
  };
  for (const char* larger : {"80", "90", "100"}) {
    Set("CAPABILITY", larger);
    EXPECT_NO_THROW(launch()) << larger;
  }
  for (const char* smaller : {"86", "89"}) {
    Set("CAPABILITY", smaller);
    EXPECT_THROW(launch(), InvariantError) << smaller;
  }
}

TEST_F(Emulated, ADriverIsOlderThanTheRuntime) {
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  Set("VERSIONS", "NCCL=2.20,driver=12.4");
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInsufficientDriver);
  int version = 0;
  cudaDriverGetVersion(&version);
  EXPECT_EQ(version, 12040);
  ncclGetVersion(&version);
  EXPECT_EQ(version, 22000);
}

/// A communicator of one rank that has summed a word in a captured step.
class Alone {
 public:
  Alone() {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_EQ(ncclCommInitRankConfig(&comm_, 1, id, 0, &config), ncclSuccess);
  }
  ncclResult_t Sum() {
    return ncclAllReduce(word_.data(), word_.data(), 1, ncclFloat32, ncclSum, comm_, stream_.Get());
  }
  void Capture() {
    cudaGraph_t graph = nullptr;
    CUDA_CALL(cudaStreamBeginCapture(stream_.Get(), cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(Sum(), ncclSuccess);
    CUDA_CALL(cudaStreamEndCapture(stream_.Get(), &graph));
    CUDA_CALL(cudaGraphInstantiate(&executable_, graph, 0));
    CUDA_CALL(cudaGraphDestroy(graph));
  }
  void Abort(Bug bug) {
    if (bug == Bug::kNone) CUDA_CALL(cudaGraphExecDestroy(executable_));
    ncclCommAbort(comm_);
  }
  ncclResult_t Error() {
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm_, &error), ncclSuccess);
    return error;
  }

 private:
  DeviceMemory word_{sizeof(float)};
  Stream stream_{Urgency::kLow};
  ncclComm_t comm_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_F(Emulated, AnErrorOfNcclShowsFromTheCallThatIsNamed) {
  Alone rank;
  Set("NCCL_ERROR", "1:1");
  EXPECT_EQ(rank.Sum(), ncclSuccess);
  EXPECT_EQ(rank.Error(), ncclSuccess) << "of another rank";
  Set("NCCL_ERROR", "0:3");
  rank.Sum();
  EXPECT_EQ(rank.Error(), ncclSuccess);
  rank.Sum();
  EXPECT_EQ(rank.Error(), ncclRemoteError);
}

TEST_F(Emulated, AnAbortBesideALivingGraphIsFound) {
  Alone rank, other;
  rank.Capture();
  rank.Abort(Bug::kNone);
  other.Capture();
  EXPECT_DEATH(other.Abort(Bug::kPlanted), "aborted before the graphs that may hold it");
  other.Abort(Bug::kNone);
}

/// Two calls of NCCL on two streams, and a peer that begins one and then the other. The GPU has room for both, or for
/// one beside a kernel. True if both end.
bool BothCallsEnd() {
  constexpr int kPatience = 1000;
  Stream streams[2] = {Stream{Urgency::kLow}, Stream{Urgency::kLow}};
  bool begun[2] = {}, done[2] = {};
  int looks = 0;
  for (const int i : {0, 1})
    emulation::EnqueueMessages(
        streams[i].Get(), [&begun, i] { begun[i] = true; },
        [&, i] {
          const bool peer_has_begun = i == 0 || done[0];
          const bool gives_up = ++looks > kPatience;
          if (!peer_has_begun && !gives_up) return emulation::Progress::kNone;
          done[i] = !gives_up;
          return emulation::Progress::kDone;
        },
        16);
  for (const Stream& stream : streams) CUDA_CALL(cudaStreamSynchronize(stream.Get()));
  return done[0] && done[1];
}

TEST_F(Emulated, HeldProcessorsFindCallsThatBeginInAnotherOrderThanThePeers) {
  const auto always = [this](const char* order, const char* processors) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", order, 1);
    bool always = true;
    for (int seed = 0; seed < kSeeds; ++seed) {
      Set("STREAMS", "random:" + std::to_string(seed) + processors);
      always = BothCallsEnd() && always;
    }
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return always;
  };
  EXPECT_TRUE(always("0", ""));
  EXPECT_TRUE(always("0", ",processors:33"));
  EXPECT_TRUE(always("1", ",processors:17"));
  EXPECT_FALSE(always("0", ",processors:17"));
  EXPECT_DEATH(always("1", ",processors:16"), "leaves no multiprocessor for kernels");
}

/// In a process of its own: what is broken stays so.
TEST_F(Emulated, AfterABrokenLaunchEveryCallFails) {
  const auto program = [this] {
    Set("FAULT", "1");
    try {
      emulation::issue(nullptr, [] {});
    } catch (const std::runtime_error& error) {
      std::fprintf(stderr, "%s; ", error.what());
    }
    void* memory = nullptr;
    const bool all = cudaStreamSynchronize(nullptr) == cudaErrorIllegalAddress &&
                     cudaMalloc(&memory, 1) == cudaErrorIllegalAddress &&
                     cudaGetLastError() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress;
    std::fprintf(stderr, "all calls fail: %d\n", all);
    std::_Exit(0);
  };
  EXPECT_EXIT(program(), ::testing::ExitedWithCode(0), "cudaErrorIllegalAddress.*all calls fail: 1");
}

}  // namespace
}  // namespace espalier::cuda
