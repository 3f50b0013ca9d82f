// Streams, events and graphs of the emulated runtime. Work runs when it is issued, in the thread that issues it, and a
// graph in the order in which it was captured, unless ESPALIER_EMULATED_STREAMS has one of these words:
//
//   late           work runs only when something waits for it, and on other streams only as far as events require (not
//                  over NCCL, whose emulated calls wait for other ranks')
//   random:SEED    of all streams that have no more to wait for, any goes on next; a graph runs in a random order of
//                  its edges; events are not ready until their streams have come so far. Calls of NCCL begin in the
//                  order in which they were issued only with NCCL_LAUNCH_ORDER_IMPLICIT=1
//   processors:N   with `random`: the GPU has N multiprocessors. A call of NCCL holds some from its begin to its end,
//                  and one is left for kernels; a call that finds too few free ones does not begin
//   not-ready:N    an event is not ready for the first N queries after it was recorded
//
// So a missing wait gives a wrong result. ESPALIER_EMULATED_CAPTURE names the place at which a capture fails: `inside`
// (an event is recorded), `end` or `instantiate`. ESPALIER_EMULATED_FAULT=N: launch N of the process accesses memory
// that is not its own, after which every call fails.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "emulate.hpp"
#include "espalier/kernels/cuda/cuda_call.hpp"
#include "runtime.hpp"
#include "switches.hpp"

namespace espalier::emulation {
namespace {

/// Calls of NCCL that were issued, or captured into one graph, and how many of them have begun.
struct Turns {
  long issued = 0, begun = 0;
};

struct Task {
  Work run;                        ///< starts it
  Poll poll;                       ///< makes it go on; without one it is done when `run` returns
  int held = 0;                    ///< multiprocessors that a call of NCCL holds; 0: not a call of NCCL
  Turns* turns = nullptr;          ///< of such a call that was issued or is a part of a launched graph
  long turn = 0;                   ///< its place among these
  CUstream_st* awaited = nullptr;  ///< it begins when this stream has done `ticket` tasks
  long ticket = 0;
  bool begun = false;
};

/// A captured task, and the nodes that must end before it begins.
struct Node {
  Task task;
  std::set<size_t> after;
};

}  // namespace
}  // namespace espalier::emulation

using namespace espalier::emulation;

/// An object that graphs and their copies keep alive.
struct CUuserObject_st {
  void* object;
  cudaHostFn_t destroy;
  unsigned references;
};
struct CUgraph_st {
  std::vector<Node> nodes;
  std::vector<cudaUserObject_t> retained;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<Node>> nodes;
  std::vector<cudaUserObject_t> retained;
};
struct CUstream_st {
  std::deque<Task> tasks;
  long issued = 0, done = 0;
  CUgraph_st* captured = nullptr;  ///< graph into which it is captured
  std::set<size_t> last;           ///< nodes of the capture after which its next one comes
};
struct CUevent_st {
  CUstream_st* stream = nullptr;   ///< stream on which it was recorded last
  long ticket = 0;                 ///< tasks of the stream before the record
  CUgraph_st* captured = nullptr;  ///< graph into which the record was captured
  std::set<size_t> last;           ///< and the nodes of it that the event awaits
  bool timed = false;
  long not_ready = 0;  ///< queries that it still answers so
  std::chrono::steady_clock::time_point time;
};

namespace espalier::emulation {
namespace {

constexpr auto kNap = std::chrono::microseconds(20);
constexpr const char* kSwitches = "ESPALIER_EMULATED_STREAMS";

/// Held while work runs: two threads may await one stream.
std::recursive_mutex mutex;
thread_local CUgraph_st* capture = nullptr;
thread_local std::set<CUstream_st*> captured_streams;

/// Launches of graphs that the host has not awaited: the stream, and its work up to the end of the graph.
std::map<CUstream_st*, long> launches;
int graphs = 0;  ///< graphs that may be launched
std::atomic<long> kernels = 0;
int held = 0;  ///< multiprocessors that calls of NCCL under way hold
Turns issued_calls;

CUstream_st& Of(cudaStream_t stream) {
  static auto& default_stream = *new CUstream_st;
  return stream == nullptr ? default_stream : *stream;
}
/// All streams, the default one too.
std::set<CUstream_st*>& Streams() {
  static auto& streams = *new std::set<CUstream_st*>{&Of(nullptr)};
  return streams;
}

bool Late() { return HasSwitch(kSwitches, "late"); }
std::string Seed() { return Switch(kSwitches, "random:"); }

/// Random numbers, anew for another seed; ranks draw different ones.
size_t Draw(size_t count) {
  static std::string seed;
  static std::mt19937 random;
  if (const std::string set = Seed(); set != seed) {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    seed = set;
    random.seed(static_cast<uint32_t>(std::hash<std::string>()(seed + "/" + (rank == nullptr ? "" : rank))));
  }
  return random() % count;
}

bool CaptureFails(std::string_view where) {
  const char* set = std::getenv("ESPALIER_EMULATED_CAPTURE");
  return set != nullptr && set == where;
}

bool CallsBeginInOrder() {
  const char* set = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return set != nullptr && std::string_view(set) == "1";
}

/// In random orders, whether a call of NCCL may begin.
bool MayBegin(const Task& task) {
  if (task.held == 0 || Seed().empty()) return true;
  if (CallsBeginInOrder() && task.turn != task.turns->begun) return false;
  const long processors = SwitchedNumber(kSwitches, "processors:", 0);
  if (processors == 0) return true;
  if (task.held >= processors) Fail("a call of NCCL that leaves no multiprocessor for kernels");
  return held + task.held < processors;
}

void Begin(Task& task) {
  task.begun = true;
  held += task.held;
  if (task.turns != nullptr) ++task.turns->begun;
  if (task.run) task.run();
}

/// Begins a task or makes it go on.
Progress GoOn(Task& task) {
  if (Broken() != cudaSuccess) return Progress::kDone;
  if (!task.begun) {
    if (!MayBegin(task)) return Progress::kNone;
    Begin(task);
    return task.poll ? Progress::kSome : Progress::kDone;
  }
  const Progress progress = task.poll();
  if (progress == Progress::kDone) held -= task.held;
  return progress;
}

void TakeTurn(Task& task, Turns& turns) {
  if (task.held == 0) return;
  task.turns = &turns;
  task.turn = turns.issued++;
}

/// The same for the first task of a stream, if it has one that may begin.
Progress GoOn(CUstream_st& stream) {
  if (stream.tasks.empty()) return Progress::kNone;
  Task& task = stream.tasks.front();
  if (task.awaited != nullptr && task.awaited->done < task.ticket) return Progress::kNone;
  const Progress progress = GoOn(task);
  if (progress != Progress::kDone) return progress;
  stream.tasks.pop_front();
  ++stream.done;
  return Progress::kSome;
}

/// Any stream that can go on does.
Progress GoOnAnywhere() {
  std::vector<CUstream_st*> streams(Streams().begin(), Streams().end());
  while (!streams.empty()) {
    const auto drawn = streams.begin() + static_cast<std::ptrdiff_t>(Draw(streams.size()));
    if (GoOn(**drawn) == Progress::kSome) return Progress::kSome;
    streams.erase(drawn);
  }
  return Progress::kNone;
}

bool AnyBegun() {
  return std::ranges::any_of(Streams(), [](const CUstream_st* s) { return !s->tasks.empty() && s->tasks[0].begun; });
}

void RunInRandomOrder(CUstream_st& stream, long ticket) {
  while (true) {
    {
      const std::lock_guard lock(mutex);
      if (stream.done >= ticket) return;
      if (GoOnAnywhere() == Progress::kSome) continue;
      if (!AnyBegun()) Fail("streams that wait for one another");
    }
    std::this_thread::sleep_for(kNap);
  }
}

void RunInOrder(CUstream_st& stream, long ticket) {
  const std::lock_guard lock(mutex);
  while (stream.done < ticket) {
    Task task = std::move(stream.tasks.front());
    stream.tasks.pop_front();
    ++stream.done;
    if (task.awaited != nullptr) RunInOrder(*task.awaited, task.ticket);
    for (Progress p = GoOn(task); p != Progress::kDone; p = GoOn(task))
      if (p == Progress::kNone) std::this_thread::sleep_for(kNap);
  }
}

void RunUntil(CUstream_st& stream, long ticket) {
  if (Seed().empty())
    RunInOrder(stream, ticket);
  else
    RunInRandomOrder(stream, ticket);
}

/// Notes that the host has waited.
void NoteAwaited(CUstream_st& stream, long ticket) {
  const std::lock_guard lock(mutex);
  if (const auto launch = launches.find(&stream); launch != launches.end() && launch->second <= ticket)
    launches.erase(launch);
}

/// Waits as the host does.
void Await(CUstream_st& stream, long ticket) {
  RunUntil(stream, ticket);
  NoteAwaited(stream, ticket);
}

/// The work of a GPU while the host issues.
void RunAfterIssue(CUstream_st& stream) {
  constexpr size_t kMax = 4;
  if (Late()) return;
  if (Seed().empty()) return RunInOrder(stream, stream.issued);
  for (size_t i = Draw(kMax); i > 0; --i) GoOnAnywhere();
}

void AddTask(CUstream_st& stream, Task task) {
  const std::lock_guard lock(mutex);
  stream.tasks.push_back(std::move(task));
  ++stream.issued;
}

void EnqueueTask(cudaStream_t to, Task task) {
  CUstream_st& stream = Of(to);
  if (stream.captured != nullptr) {
    std::vector<Node>& nodes = stream.captured->nodes;
    nodes.push_back({std::move(task), stream.last});
    stream.last = {nodes.size() - 1};
    return;
  }
  const std::lock_guard lock(mutex);
  TakeTurn(task, issued_calls);
  AddTask(stream, std::move(task));
  RunAfterIssue(stream);
}

/// A launch of a graph that runs in a random order of its edges.
class GraphRun {
 public:
  explicit GraphRun(const std::vector<Node>& nodes) : left_(nodes.size()) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      TakeTurn(tasks_.emplace_back(nodes[i].task), turns_);
      missing_.push_back(nodes[i].after.size());
      followers_.emplace_back();
      for (const size_t before : nodes[i].after) followers_[before].push_back(i);
      if (nodes[i].after.empty()) ready_.push_back(i);
    }
  }

  Progress GoOn() {
    if (left_ == 0) return Progress::kDone;
    std::vector<size_t> untried(ready_.size());
    for (size_t i = 0; i < untried.size(); ++i) untried[i] = i;
    while (!untried.empty()) {
      const auto drawn = untried.begin() + static_cast<std::ptrdiff_t>(Draw(untried.size()));
      const size_t at = *drawn;
      const Progress progress = emulation::GoOn(tasks_[ready_[at]]);
      if (progress == Progress::kDone) return End(at);
      if (progress == Progress::kSome) return progress;
      untried.erase(drawn);
    }
    return Progress::kNone;
  }

 private:
  Progress End(size_t at) {
    const size_t node = ready_[at];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(at));
    for (const size_t follower : followers_[node])
      if (--missing_[follower] == 0) ready_.push_back(follower);
    return --left_ == 0 ? Progress::kDone : Progress::kSome;
  }

  Turns turns_;
  std::vector<Task> tasks_;
  std::vector<size_t> missing_, ready_;
  std::vector<std::vector<size_t>> followers_;
  size_t left_;
};

void Release(cudaUserObject_t user, unsigned count) {
  if ((user->references -= count) > 0) return;
  user->destroy(user->object);
  delete user;
}

/// Nodes that `last` awaits, directly or not, and these themselves.
size_t CountAwaited(const std::vector<Node>& nodes, std::set<size_t> last) {
  std::set<size_t> awaited;
  while (!last.empty()) {
    const size_t node = last.extract(last.begin()).value();
    if (awaited.insert(node).second) last.insert(nodes[node].after.begin(), nodes[node].after.end());
  }
  return awaited.size();
}

}  // namespace

bool Capturing() { return capture != nullptr; }
bool GraphsAlive() { return graphs > 0; }
bool GraphUnderWay() {
  const std::lock_guard lock(mutex);
  return !launches.empty();
}

void Enqueue(cudaStream_t to, Work work) { EnqueueTask(to, {std::move(work), nullptr}); }
void EnqueueLate(cudaStream_t to, Work work) { AddTask(Of(to), {std::move(work), nullptr}); }
void EnqueueMessages(cudaStream_t to, Work start, Poll poll, int processors) {
  EnqueueTask(to, {std::move(start), std::move(poll), processors});
}

void AwaitAllStreams() {
  const std::set<CUstream_st*> streams = Streams();
  for (CUstream_st* stream : streams) RunUntil(*stream, stream->issued);
}

namespace {

/// A launch reports the last error that nobody has asked for, its own or not.
void EnqueueLaunch(cudaStream_t stream, Work work) {
  if (!OnItsGpu()) Fail("a launch on another GPU than its stream's");
  if (const long at = SwitchedNumber("ESPALIER_EMULATED_FAULT", "", 0); at > 0 && ++kernels == at)
    work = [] { Break(cudaErrorIllegalAddress); };
  Enqueue(stream, std::move(work));
  CUDA_CALL(cudaGetLastError());
}
const bool installed = (issue = EnqueueLaunch, true);

}  // namespace

}  // namespace espalier::emulation

// NOLINTBEGIN: CUDA's names
extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  *low = 0;
  *high = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  if (!OnItsGpu()) return Failed(cudaErrorInvalidDevice);
  if (priority < -5 || priority > 0) return Failed(cudaErrorInvalidValue);
  const std::lock_guard lock(mutex);
  *stream = new CUstream_st;
  Streams().insert(*stream);
  return cudaSuccess;
}
/// Tasks of other streams may await it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  AwaitAllStreams();
  const std::lock_guard lock(mutex);
  launches.erase(stream);
  Streams().erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  Await(Of(stream), Of(stream).issued);
  return Broken();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t to, cudaEvent_t event, unsigned) {
  CUstream_st& stream = Of(to);
  if (event->stream == nullptr) return Broken();
  if (event->captured != nullptr) {
    if (event->captured != capture) return Failed(cudaErrorCapturedEvent);  // recorded in no or in a finished capture
    stream.captured = capture;                                              // it joins
    captured_streams.insert(&stream);
    stream.last.insert(event->last.begin(), event->last.end());
    return cudaSuccess;
  }
  if (stream.captured != nullptr) return Failed(cudaErrorStreamCaptureIsolation);
  EnqueueTask(to, {.awaited = event->stream, .ticket = event->ticket});
  return Broken();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!OnItsGpu()) return Failed(cudaErrorInvalidDevice);
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
  if (!OnItsGpu()) return Failed(cudaErrorInvalidDevice);
  CUstream_st& stream = Of(on);
  event->stream = &stream;
  event->captured = stream.captured;
  if (event->captured != nullptr) {
    event->last = stream.last;
    return CaptureFails("inside") ? Failed(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  }
  const std::lock_guard lock(mutex);
  AddTask(stream, {[event] { event->time = std::chrono::steady_clock::now(); }, nullptr});
  event->ticket = stream.issued;
  event->not_ready = SwitchedNumber(kSwitches, "not-ready:", 0);
  RunAfterIssue(stream);
  return Broken();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  if (event->captured != nullptr) return Failed(cudaErrorCapturedEvent);
  if (event->stream != nullptr) Await(*event->stream, event->ticket);
  return Broken();
}
/// A query counts as a wait, unless events may be unready.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  if (event->captured != nullptr) return Failed(cudaErrorCapturedEvent);
  if (event->stream == nullptr || Broken() != cudaSuccess) return Broken();
  if (event->not_ready > 0 && event->not_ready-- > 0) return Failed(cudaErrorNotReady);
  if (Seed().empty()) return cudaEventSynchronize(event);
  const std::lock_guard lock(mutex);
  GoOnAnywhere();
  if (Broken() == cudaSuccess && event->stream->done < event->ticket) return Failed(cudaErrorNotReady);
  NoteAwaited(*event->stream, event->ticket);
  return Broken();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  for (const cudaEvent_t event : {from, to}) {
    if (!event->timed || event->stream == nullptr || event->captured != nullptr)
      return Failed(cudaErrorInvalidResourceHandle);
    if (event->stream->done < event->ticket) return Failed(cudaErrorNotReady);
  }
  *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return Broken();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (Capturing() || stream == nullptr) return Failed(cudaErrorStreamCaptureUnsupported);
  capture = stream->captured = new CUgraph_st;
  stream->last.clear();
  captured_streams = {stream};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream->captured == nullptr || stream->captured != capture) return Failed(cudaErrorIllegalState);
  const std::vector<Node>& nodes = capture->nodes;
  const bool unjoined = CountAwaited(nodes, stream->last) < nodes.size();
  for (CUstream_st* captured : captured_streams) {
    captured->captured = nullptr;
    captured->last.clear();
  }
  *graph = std::exchange(capture, nullptr);
  if (!unjoined && !CaptureFails("end")) return cudaSuccess;
  cudaGraphDestroy(std::exchange(*graph, nullptr));
  return Failed(cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->captured != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return Broken();
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long*,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long*,
                                        cudaGraph_t* graph, const cudaGraphNode_t**, size_t*) {
#endif
  *graph = Of(stream).captured;
  *status = *graph != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return Broken();
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* user, void* object, cudaHostFn_t destroy, unsigned references,
                                 unsigned) {
  *user = new CUuserObject_st{object, destroy, references};
  return Broken();
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t user, unsigned count) {
  Release(user, count);
  return Broken();
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t user, unsigned count, unsigned) {
  user->references += count;
  graph->retained.insert(graph->retained.end(), count, user);
  return Broken();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (CaptureFails("instantiate")) return Failed(cudaErrorMemoryAllocation);
  *executable = new CUgraphExec_st{std::make_shared<const std::vector<Node>>(graph->nodes), graph->retained};
  for (const cudaUserObject_t user : graph->retained) ++user->references;
  ++graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (Capturing()) return Failed(cudaErrorStreamCaptureUnsupported);
  if (Seed().empty()) {
    for (const Node& node : *executable->nodes) EnqueueTask(stream, node.task);
  } else {
    const auto run = std::make_shared<GraphRun>(*executable->nodes);
    EnqueueTask(stream, {nullptr, [run] { return run->GoOn(); }});
  }
  const std::lock_guard lock(mutex);
  launches[&Of(stream)] = Of(stream).issued;
  return Broken();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  for (const cudaUserObject_t user : graph->retained) Release(user, 1);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  for (const cudaUserObject_t user : executable->retained) Release(user, 1);
  delete executable;
  --graphs;
  return cudaSuccess;
}
}
// NOLINTEND
