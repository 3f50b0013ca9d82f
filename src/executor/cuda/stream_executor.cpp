#include "stream_executor.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "ranges.hpp"

namespace espalier::cuda {
namespace {

bool GraphsWanted() { return FromEnvironment("ESPALIER_CUDA_GRAPH") != "0"; }

int LongestLane(const Program& program) {
  ByLane<int> counts{};
  for (const Instruction& instruction : program.instructions) ++counts[instruction.lane];
  return *std::ranges::max_element(counts);
}

}  // namespace

StreamExecutor::StreamExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                               Streams& streams, StreamCommunication* communication, Abort abort)
    : CudaExecutor(program, coordinate, memory, streams, std::move(abort)),
      communication_(communication),
      progress_(LongestLane(program)),
      graphs_(GraphsWanted()) {
  CHECK(exchanges_.empty() || communication != nullptr,
        "the program communicates, but there is nothing to communicate with");
  // Collective: also called if this rank communicates nothing.
  if (communication != nullptr) comm_ = communication->Prepare(program, coordinate, std::move(exchanges_));
}

StreamExecutor::~StreamExecutor() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

/// While a graph with a communicator runs, NCCL accepts no other call on that communicator, whatever the order of
/// streams (except with NCCL_GRAPH_MIXING_SUPPORT, which is off).
void StreamExecutor::BeforeStep() {
  if (comm_ != nullptr && graph_ != nullptr && !MayCapture()) AwaitBegun();
}

void StreamExecutor::IssueStep(cudaEvent_t) {
  if (!MayCapture() || (graph_ == nullptr && !Capture())) return Issue(false);
  CUDA_CALL(cudaGraphLaunch(graph_, streams_.Compute()));
}

/// Libraries may still initialise in the first step. Injected faults and instruction clocks need the instructions one
/// by one.
bool StreamExecutor::MayCapture() const { return graphs_ && begun() > 0 && !FaultsArmed() && Clock() == nullptr; }

/// A step that cannot be captured is issued instead, as are all later ones.
bool StreamExecutor::Capture() {
  cudaGraph_t graph = nullptr;
  CUDA_CALL(cudaStreamBeginCapture(streams_.Compute(), cudaStreamCaptureModeThreadLocal));
  try {
    Issue(true);
    CUDA_CALL(cudaStreamEndCapture(streams_.Compute(), &graph));
    CUDA_CALL(cudaGraphInstantiate(&graph_, graph, 0));
  } catch (const std::exception& error) {
    GiveUpCapture(graph, error.what());
    return false;
  }
  CUDA_CALL(cudaGraphDestroy(graph));
  return true;
}

void StreamExecutor::GiveUpCapture(cudaGraph_t graph, const std::string& why) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA_CALL(cudaStreamIsCapturing(streams_.Compute(), &status));
  if (status != cudaStreamCaptureStatusNone) cudaStreamEndCapture(streams_.Compute(), &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  graph_ = nullptr;
  graphs_ = false;
  counts_beside_ = false;
  NoteFallback("a step cannot be captured as a CUDA graph, so its kernels are launched one by one: " + why);
}

void StreamExecutor::Issue(bool captured) {
  Fork();
  ByLane<int> issued{};
  JobRanges jobs(program_);
  size_t call = 0, exchange = 0, copy = 0;
  for (int index = 0; index < std::ssize(program_.instructions); ++index) {
    const Instruction i = program_.instructions[static_cast<size_t>(index)];
    jobs.Enter(index);
    const cudaStream_t stream = streams_.Of(i.lane);
    const bool computes = i.lane == Lane::kCompute, marks = computes && !i.waits.empty() && !captured;
    if (marks) MarkWait();
    for (const Wait& wait : i.waits) events_.Await(wait, stream);
    if (marks) MarkWait();
    if (computes)
      IssueKernel(calls_[call++]);
    else if (IsCopyLane(i.lane))
      IssueCopy(copies_[copy++]);
    else
      IssueExchange(exchange++, index, stream);
    Finished(i.lane, ++issued[i.lane], stream);
  }
  Join();
}

void StreamExecutor::IssueExchange(size_t exchange, int index, cudaStream_t stream) {
  if (Clock() != nullptr) Clock()->Begins(index, stream);
  if (FaultAtInstruction(index) != InstructionFault::kSkip) communication_->Issue(*comm_, exchange, stream);
  if (Clock() != nullptr) Clock()->Ends(index, stream);
}

void StreamExecutor::Finished(Lane lane, int count, cudaStream_t stream) {
  events_.Issued(lane, count, stream);
  if (lane != Lane::kCompute) return progress_.Finished(lane, count, stream);
  // On the compute lane only counts that another lane waits for are shown; the copy runs on a separate stream, since a
  // copy between two kernels costs time.
  if (!events_.Has(lane, count) && count % DeviceProgress::kSignOfLife != 0) return;
  const cudaStream_t beside = streams_.progress.Get();
  CUDA_CALL(cudaEventRecord(computed_.Get(), stream));
  CUDA_CALL(cudaStreamWaitEvent(beside, computed_.Get(), 0));
  progress_.Finished(lane, count, beside);
  counts_beside_ = true;
}

/// All lanes begin after everything that the compute stream did before: counts restart with every step, so waits do not
/// order a step after the previous one.
void StreamExecutor::Fork() {
  const cudaStream_t compute = streams_.Compute();
  progress_.Begin(compute);
  CUDA_CALL(cudaEventRecord(fork_.Get(), compute));
  for (const Wait& end : ends_) CUDA_CALL(cudaStreamWaitEvent(streams_.Of(end.lane), fork_.Get(), 0));
}

void StreamExecutor::Join() {
  const auto join = [&](cudaStream_t stream) {
    CUDA_CALL(cudaEventRecord(join_.Get(), stream));
    CUDA_CALL(cudaStreamWaitEvent(streams_.Compute(), join_.Get(), 0));
  };
  for (const Wait& end : ends_) join(streams_.Of(end.lane));
  if (std::exchange(counts_beside_, false)) join(streams_.progress.Get());
  progress_.Finished(Lane::kCompute, static_cast<int>(calls_.size()), streams_.Compute());
}

void StreamExecutor::ShowProgress() { progress_.Show(lanes_.progress(), begun()); }

void StreamExecutor::Look() {
  ShowProgress();
  if (comm_ != nullptr) communication_->CheckErrors();
}

/// NCCL ends no communicator that a graph may use, so the graph goes first.
void StreamExecutor::Abandon() {
  if (graph_ != nullptr) cudaGraphExecDestroy(std::exchange(graph_, nullptr));
  graphs_ = false;
  if (comm_ != nullptr) communication_->Abort();
}

}  // namespace espalier::cuda
