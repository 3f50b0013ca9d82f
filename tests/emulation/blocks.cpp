// Blocks of threads as fibers. A fiber runs thread after thread until one waits; the fiber then belongs to that thread,
// and another fiber runs the next: a kernel that never waits needs only one. All fibers of a host thread are kept for
// its later launches.
#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "emulate.hpp"
#include "espalier/util/error.hpp"
#include "stack_switch.hpp"
#include "switches.hpp"

namespace espalier::emulation {
namespace {

using boost::context::fiber;

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 256 << 10, kGuardBytes = 64;
constexpr unsigned char kGuard = 0xa5, kNan = 0xff;

struct Worker {
  fiber inside;   ///< the fiber that the worker resumes; held while it waits
  fiber outside;  ///< the block that waits for the worker
  Stack stack;
};

/// Thrown through a thread that will never continue.
struct Abandoned {};

struct Thread {
  Worker* worker = nullptr;
  bool ended = false;
  Meeting meeting = Meeting::kNone;
  uint32_t mask = 0;
  uint64_t value = 0, result = 0;
  int source = 0;
};

class Block {
 public:
  Block() = default;
  ~Block() { Forget(); }
  void Run(const Grid& grid, const std::function<void()>& body, bool backwards);
  uint64_t Meet(Meeting meeting, uint32_t mask, uint64_t value, int source);
  int current() const { return current_; }
  unsigned char* shared() { return shared_.data() + kGuardBytes; }

 private:
  void RunThreads();
  void StartAll();
  Worker& FreeWorker();
  void Work(Worker& worker);
  void RunThread(Worker& worker);
  void Resume(Worker& worker);
  void Pause(Worker& worker);
  void Continue(int thread);
  void SetIndex(int thread);
  int InOrder(int i, int n) const { return backwards_ ? n - 1 - i : i; }
  bool CompleteWarps();
  bool CompleteWarp(int warp);
  bool CompleteMeeting(int first);
  bool CompleteBarrier();
  void FillShared(size_t bytes);
  bool SharedIsIntact() const;
  [[noreturn]] void Fail(int thread, const std::string& what);
  void Forget();

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> free_;
  std::vector<Thread> threads_;
  std::vector<unsigned char> shared_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr error_;
  Stack stack_;  ///< stack of the host thread
  int next_ = 0, current_ = 0;
  bool leaving_ = false, backwards_ = false;
};

thread_local Block block;

/// All workers return by themselves, from the middle of a thread by an exception. The library's own unwinding would
/// throw before sanitizers know the current stack.
void Block::Forget() {
  leaving_ = true;
  for (const std::unique_ptr<Worker>& worker : workers_) Resume(*worker);
  free_.clear(), workers_.clear();
  leaving_ = false;
}

void Block::Resume(Worker& worker) {
  Leave(stack_, worker.stack);
  worker.inside = std::move(worker.inside).resume();
  Enter(stack_, worker.stack);
}

/// Resumes the block, until it resumes the worker.
void Block::Pause(Worker& worker) {
  Leave(worker.stack, stack_);
  worker.outside = std::move(worker.outside).resume();
  Enter(worker.stack, stack_);
}

void Block::Run(const Grid& grid, const std::function<void()>& body, bool backwards) {
  body_ = &body;
  backwards_ = backwards;
  threads_.assign(grid.threads.x * grid.threads.y * grid.threads.z, {});
  FillShared(grid.shared_bytes);
  RunThreads();
  CHECK(SharedIsIntact(), "a kernel writes around its {} bytes of dynamic shared memory", grid.shared_bytes);
}

void Block::RunThreads() {
  StartAll();
  const auto ended = [](const Thread& thread) { return thread.ended; };
  while (!std::all_of(threads_.begin(), threads_.end(), ended)) {
    if (CompleteWarps() || CompleteBarrier()) continue;
    Fail(static_cast<int>(std::find_if_not(threads_.begin(), threads_.end(), ended) - threads_.begin()),
         "waits for threads that have ended, or that wait for something else");
  }
}

void Block::StartAll() {
  next_ = 0;
  while (next_ < static_cast<int>(threads_.size())) Continue(-1);
}

/// Resumes a thread, or (-1) the threads that have not begun.
void Block::Continue(int thread) {
  if (thread >= 0) SetIndex(thread);
  Resume(thread >= 0 ? *threads_[static_cast<size_t>(thread)].worker : FreeWorker());
  if (!error_) return;
  Forget();
  std::rethrow_exception(std::exchange(error_, nullptr));
}

Worker& Block::FreeWorker() {
  if (free_.empty()) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
    boost::context::protected_fixedsize_stack stacks(kStackBytes);
    const boost::context::stack_context stack = stacks.allocate();
    worker.stack = {static_cast<std::byte*>(stack.sp) - stack.size, stack.size};
    worker.inside = fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), stacks,
                          [this, &worker](fiber&& outside) {
                            worker.outside = std::move(outside);
                            Enter(worker.stack, stack_);
                            while (!leaving_) Work(worker);
                            Leave(worker.stack, stack_, true);
                            return std::move(worker.outside);
                          });
    return worker;
  }
  Worker& worker = *free_.back();
  free_.pop_back();
  return worker;
}

void Block::Work(Worker& worker) {
  while (next_ < static_cast<int>(threads_.size()) && !error_ && !leaving_) RunThread(worker);
  if (leaving_) return;
  free_.push_back(&worker);
  Pause(worker);
}

void Block::RunThread(Worker& worker) {
  const int thread = InOrder(next_++, static_cast<int>(threads_.size()));
  threads_[static_cast<size_t>(thread)].worker = &worker;
  SetIndex(thread);
  try {
    (*body_)();
  } catch (const Abandoned&) {
    return;
  } catch (...) {
    error_ = std::current_exception();
  }
  threads_[static_cast<size_t>(current_)].ended = true;
}

void Block::SetIndex(int thread) {
  current_ = thread;
  const auto t = static_cast<unsigned>(thread);
  threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}

uint64_t Block::Meet(Meeting meeting, uint32_t mask, uint64_t value, int source) {
  Thread& thread = threads_[static_cast<size_t>(current_)];
  thread.meeting = meeting;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  Pause(*thread.worker);
  if (leaving_) throw Abandoned{};
  return thread.result;
}

bool Block::CompleteWarps() {
  bool any = false;
  const int warps = (static_cast<int>(threads_.size()) + kWarp - 1) / kWarp;
  for (int w = 0; w < warps; ++w)
    while (CompleteWarp(InOrder(w, warps))) any = true;
  return any;
}

/// Completes one synchronization of a warp's threads, if all have arrived.
bool Block::CompleteWarp(int warp) {
  const int last = std::min((warp + 1) * kWarp, static_cast<int>(threads_.size()));
  for (int t = warp * kWarp; t < last; ++t) {
    const Meeting meeting = threads_[static_cast<size_t>(t)].meeting;
    if (meeting != Meeting::kNone && meeting != Meeting::kBlock && CompleteMeeting(t)) return true;
  }
  return false;
}

/// Completes the wait of `first` if all lanes of its mask wait for the same.
bool Block::CompleteMeeting(int first) {
  const Thread wanted = threads_[static_cast<size_t>(first)];
  const int warp = first / kWarp * kWarp, last = std::min(warp + kWarp, static_cast<int>(threads_.size()));
  if ((wanted.mask >> (first - warp) & 1) == 0) Fail(first, "waits in its warp without being named by its mask");
  if (last - warp < kWarp && wanted.mask >> (last - warp) != 0) Fail(first, "names lanes that its warp does not have");
  uint64_t ballot = 0;
  for (int t = warp; t < last; ++t) {
    const Thread& thread = threads_[static_cast<size_t>(t)];
    if ((wanted.mask >> (t - warp) & 1) == 0) continue;
    if (thread.meeting != wanted.meeting || thread.mask != wanted.mask) return false;
    if (thread.value != 0) ballot |= uint64_t{1} << (t - warp);
  }
  for (int t = warp; t < last; ++t) {
    Thread& thread = threads_[static_cast<size_t>(t)];
    if ((wanted.mask >> (t - warp) & 1) == 0) continue;
    if (wanted.meeting == Meeting::kShuffle && (wanted.mask >> thread.source & 1) == 0)
      Fail(t, "shuffles from a lane outside its mask");
    thread.result =
        wanted.meeting == Meeting::kShuffle ? threads_[static_cast<size_t>(warp + thread.source)].value : ballot;
    thread.meeting = Meeting::kNone;
  }
  for (int i = 0; i < last - warp; ++i)
    if (const int lane = InOrder(i, last - warp); (wanted.mask >> lane & 1) != 0) Continue(warp + lane);
  return true;
}

bool Block::CompleteBarrier() {
  for (const Thread& thread : threads_)
    if (thread.meeting != Meeting::kBlock) return false;
  for (Thread& thread : threads_) thread.meeting = Meeting::kNone;
  const int count = static_cast<int>(threads_.size());
  for (int i = 0; i < count; ++i) Continue(InOrder(i, count));
  return true;
}

void Block::FillShared(size_t bytes) {
  shared_.assign(bytes + 2 * kGuardBytes, kGuard);
  std::fill_n(shared(), bytes, kNan);
}

bool Block::SharedIsIntact() const {
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  return std::all_of(shared_.begin(), shared_.begin() + kGuardBytes, is_guard) &&
         std::all_of(shared_.end() - kGuardBytes, shared_.end(), is_guard);
}

void Block::Fail(int thread, const std::string& what) {
  const uint3 at = blockIdx;
  Forget();
  CHECK(false, "thread {} of block ({}, {}, {}) {}", thread, at.x, at.y, at.z, what);
  std::terminate();
}

void IssueAtOnce(cudaStream_t, std::function<void()> work) { work(); }

/// The limits of compute capability 8.0 to 9.0; for shared memory, the smallest limit among them.
void CheckLimits(const Grid& grid) {
  const dim3 blocks = grid.blocks, threads = grid.threads;
  CHECK(
      blocks.x > 0 && blocks.y > 0 && blocks.z > 0 && blocks.x <= 0x7fffffffu && blocks.y <= 65535 && blocks.z <= 65535,
      "a grid of {} x {} x {} blocks", blocks.x, blocks.y, blocks.z);
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  CHECK(count > 0 && count <= 1024 && threads.z <= 64, "blocks of {} x {} x {} threads", threads.x, threads.y,
        threads.z);
  CHECK(grid.shared_bytes <= cuda::MostSharedBytes(), "{} bytes of dynamic shared memory", grid.shared_bytes);
}

}  // namespace

void (*issue)(cudaStream_t stream, std::function<void()> work) = IssueAtOnce;

thread_local Order order;

void RunGrid(const Grid& grid, const std::function<void()>& thread) {
  CheckLimits(grid);
  gridDim = grid.blocks;
  blockDim = grid.threads;
  const unsigned launch = order.launch++;
  const uint64_t plane = uint64_t{grid.blocks.x} * grid.blocks.y, count = plane * grid.blocks.z;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t b = (launch % 2 == 1) == order.opposite ? i : count - 1 - i;
    blockIdx = {static_cast<unsigned>(b % grid.blocks.x), static_cast<unsigned>(b / grid.blocks.x % grid.blocks.y),
                static_cast<unsigned>(b / plane)};
    block.Run(grid, thread, ((launch / 2 + b) % 2 == 1) != order.opposite);
  }
}

void Fail(const char* what) {
  CHECK(false, "thread ({}, {}, {}) of block ({}, {}, {}): {}", threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x,
        blockIdx.y, blockIdx.z, what);
  std::terminate();
}
uint64_t Meet(Meeting meeting, uint32_t mask, uint64_t value, int source) {
  return block.Meet(meeting, mask, value, source);
}
int Lane() { return block.current() % kWarp; }
unsigned char* SharedMemory() { return block.shared(); }

size_t MostSharedBytes() {
  constexpr size_t kKilobyte = 1024;
  const char* set = std::getenv("ESPALIER_EMULATED_CAPABILITY");
  const int capability = set == nullptr ? 86 : Capability();
  return (capability == 86 || capability == 89 ? 98 : capability < 90 ? 162 : 226) * kKilobyte;
}

}  // namespace espalier::emulation
