// Streams, events and graphs of the emulated runtime. Work runs when it is issued, in the thread that issues it; or,
// with ESPALIER_EMULATED_STREAMS=late, only when something waits for it, and on other streams only as far as events
// require, so that a missing wait gives a wrong result. (Not over NCCL, whose emulated calls wait for other ranks'.)
// ESPALIER_EMULATED_CAPTURE names the place at which a capture fails: `inside` (an event is recorded), `end` or
// `instantiate`.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "emulate.hpp"
#include "runtime.hpp"

using Work = std::function<void()>;

struct CUgraph_st {
  std::vector<Work> works;
};
struct CUgraphExec_st {
  std::vector<Work> works;
};
struct CUstream_st {
  std::deque<Work> works;
  long issued = 0, done = 0;
  CUgraph_st* captured = nullptr;             ///< graph into which it is captured
  long captured_works = 0, joined_works = 0;  ///< works of the capture, and how many of them other streams wait for
};
struct CUevent_st {
  CUstream_st* stream = nullptr;   ///< stream on which it was recorded last
  long ticket = 0;                 ///< work of the stream, or captured work, before the record
  CUgraph_st* captured = nullptr;  ///< graph into which the record was captured
  bool timed = false;
  std::chrono::steady_clock::time_point time;
};

namespace espalier::emulation {
namespace {

/// Held while work runs: two threads may await one stream.
std::recursive_mutex mutex;
thread_local CUgraph_st* capture = nullptr;
thread_local std::set<CUstream_st*> captured_streams;

/// Launches of graphs that the host has not awaited: the stream, and its work up to the end of the graph.
std::map<CUstream_st*, long> launches;
int graphs = 0;  ///< graphs that may be launched

CUstream_st& Of(cudaStream_t stream) {
  static CUstream_st default_stream;
  return stream == nullptr ? default_stream : *stream;
}

bool Late() {
  static const char* const set = std::getenv("ESPALIER_EMULATED_STREAMS");
  static const bool late = set != nullptr && std::strcmp(set, "late") == 0;
  return late;
}

bool CaptureFails(std::string_view where) {
  const char* set = std::getenv("ESPALIER_EMULATED_CAPTURE");
  return set != nullptr && set == where;
}

void RunUntil(CUstream_st& stream, long ticket) {
  const std::lock_guard lock(mutex);
  while (stream.done < ticket) {
    const Work work = std::move(stream.works.front());
    stream.works.pop_front();
    ++stream.done;
    work();
  }
}

/// Waits as the host does.
void Await(CUstream_st& stream, long ticket) {
  RunUntil(stream, ticket);
  const std::lock_guard lock(mutex);
  if (const auto launch = launches.find(&stream); launch != launches.end() && launch->second <= ticket)
    launches.erase(launch);
}

}  // namespace

bool Capturing() { return capture != nullptr; }
bool GraphsAlive() { return graphs > 0; }
bool GraphUnderWay() {
  const std::lock_guard lock(mutex);
  return !launches.empty();
}

void Enqueue(cudaStream_t to, Work work) {
  CUstream_st& stream = Of(to);
  if (stream.captured != nullptr) {
    ++stream.captured_works;
    stream.captured->works.push_back(std::move(work));
    return;
  }
  EnqueueLate(to, std::move(work));
  if (!Late()) RunUntil(stream, stream.issued);
}

void EnqueueLate(cudaStream_t to, Work work) {
  const std::lock_guard lock(mutex);
  Of(to).works.push_back(std::move(work));
  ++Of(to).issued;
}

namespace {

/// Kernels and NCCL's calls use the same path.
void EnqueueLaunch(cudaStream_t stream, Work work) {
  if (!OnItsGpu()) Fail("a launch on another GPU than its stream's");
  Enqueue(stream, std::move(work));
}
const bool installed = (issue = EnqueueLaunch, true);

}  // namespace

}  // namespace espalier::emulation

using namespace espalier::emulation;

// NOLINTBEGIN: CUDA's names
extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  *low = 0;
  *high = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  if (!OnItsGpu()) return cudaErrorInvalidDevice;
  if (priority < -5 || priority > 0) return cudaErrorInvalidValue;
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Await(*stream, stream->issued);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  Await(Of(stream), Of(stream).issued);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t to, cudaEvent_t event, unsigned) {
  CUstream_st& stream = Of(to);
  if (event->stream == nullptr) return cudaSuccess;
  if (event->captured != nullptr) {
    if (event->captured != capture) return cudaErrorCapturedEvent;  // recorded in no capture, or in a finished one
    stream.captured = capture;                                      // it joins
    captured_streams.insert(&stream);
    if (event->stream != &stream) event->stream->joined_works = std::max(event->stream->joined_works, event->ticket);
    return cudaSuccess;
  }
  if (stream.captured != nullptr) return cudaErrorStreamCaptureIsolation;
  Enqueue(to, [from = event->stream, ticket = event->ticket] { RunUntil(*from, ticket); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!OnItsGpu()) return cudaErrorInvalidDevice;
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event->stream != nullptr && event->captured == nullptr) RunUntil(*event->stream, event->ticket);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t on) {
  if (!OnItsGpu()) return cudaErrorInvalidDevice;
  CUstream_st& stream = Of(on);
  event->stream = &stream;
  event->captured = stream.captured;
  if (event->captured != nullptr) {
    event->ticket = stream.captured_works;
    return CaptureFails("inside") ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  }
  const std::lock_guard lock(mutex);
  stream.works.push_back([event] { event->time = std::chrono::steady_clock::now(); });
  event->ticket = ++stream.issued;
  if (!Late()) RunUntil(stream, stream.issued);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  if (event->captured != nullptr) return cudaErrorCapturedEvent;
  if (event->stream != nullptr) Await(*event->stream, event->ticket);
  return cudaSuccess;
}
/// A query counts as a wait.
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  for (const cudaEvent_t event : {from, to}) {
    if (!event->timed || event->stream == nullptr || event->captured != nullptr) return cudaErrorInvalidResourceHandle;
    if (event->stream->done < event->ticket) return cudaErrorNotReady;
  }
  *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (Capturing() || stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  capture = stream->captured = new CUgraph_st;
  captured_streams = {stream};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream->captured == nullptr || stream->captured != capture) return cudaErrorIllegalState;
  bool unjoined = false;
  for (CUstream_st* other : captured_streams) {
    unjoined = unjoined || (other != stream && other->joined_works < other->captured_works);
    other->captured = nullptr;
    other->captured_works = other->joined_works = 0;
  }
  *graph = std::exchange(capture, nullptr);
  if (!unjoined && !CaptureFails("end")) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->captured != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (CaptureFails("instantiate")) return cudaErrorMemoryAllocation;
  *executable = new CUgraphExec_st{graph->works};
  ++graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (Capturing()) return cudaErrorStreamCaptureUnsupported;
  for (const Work& work : executable->works) Enqueue(stream, work);
  const std::lock_guard lock(mutex);
  launches[&Of(stream)] = Of(stream).issued;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  --graphs;
  return cudaSuccess;
}
}
// NOLINTEND
