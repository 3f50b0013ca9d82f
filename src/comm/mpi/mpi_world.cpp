#include "espalier/comm/mpi_world.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/mpi/mpi_state.hpp"
#include "comm/pause.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/print.hpp"

namespace espalier {
namespace {

constexpr int64_t kLargestPart = int64_t{1} << 30;    // bytes of a message: MPI counts in int
constexpr int64_t kExchangedPart = int64_t{4} << 20;  // bytes of a message of Exchange in one round
constexpr int kExchangeTag = 1;

[[noreturn]] void FailWorld(const MpiState& state, const std::string& message, ExitStatus status) {
  PrintError("espalier: rank {}: {}\n", state.rank, message);
  AbortMpi(static_cast<int>(status));
}

/// Blocking calls over one communicator, built from nonblocking ones: a thread that waits here does not hold the lock.
class CommWorld final : public World {
 public:
  CommWorld(MpiState& state, MpiComm comm) : state_(state), comm_(std::move(comm)) {}
  ~CommWorld() override {
    std::lock_guard lock(state_.mutex);
    comm_ = MpiComm();
  }

  int Rank() const override { return state_.rank; }
  int Size() const override { return state_.size; }

  void Barrier() override {
    Run([&](MPI_Request* request) { MPI_CALL(MPI_Ibarrier(comm_.Get(), request)); });
  }

  std::vector<std::string> Gather(const std::string& bytes) override {
    const int64_t size = static_cast<int64_t>(bytes.size());
    std::vector<int64_t> sizes(Rank() == 0 ? static_cast<size_t>(Size()) : 0);
    Run([&](MPI_Request* request) {
      MPI_CALL(MPI_Igather(&size, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, 0, comm_.Get(), request));
    });
    std::vector<MPI_Request> requests;
    std::vector<std::string> all;
    if (Rank() != 0) {
      Parts(size, requests, [&](int64_t at, int n, MPI_Request* request) {
        MPI_CALL(MPI_Isend(bytes.data() + at, n, MPI_BYTE, 0, 0, comm_.Get(), request));
      });
    } else {
      all.push_back(bytes);
      for (int rank = 1; rank < Size(); ++rank)
        all.emplace_back(static_cast<size_t>(sizes[static_cast<size_t>(rank)]), '\0');
      for (int rank = 1; rank < Size(); ++rank) {
        std::string& to = all[static_cast<size_t>(rank)];
        Parts(static_cast<int64_t>(to.size()), requests, [&](int64_t at, int n, MPI_Request* request) {
          MPI_CALL(MPI_Irecv(to.data() + at, n, MPI_BYTE, rank, 0, comm_.Get(), request));
        });
      }
    }
    AwaitAll(state_, requests);
    return all;
  }

  std::string Broadcast(const std::string& bytes) override {
    int64_t size = static_cast<int64_t>(bytes.size());
    Run([&](MPI_Request* request) { MPI_CALL(MPI_Ibcast(&size, 1, MPI_INT64_T, 0, comm_.Get(), request)); });
    std::string all = Rank() == 0 ? bytes : std::string(static_cast<size_t>(size), '\0');
    std::vector<MPI_Request> requests;
    Parts(size, requests, [&](int64_t at, int n, MPI_Request* request) {
      MPI_CALL(MPI_Ibcast(all.data() + at, n, MPI_BYTE, 0, comm_.Get(), request));
    });
    AwaitAll(state_, requests);
    return all;
  }

  int64_t Max(int64_t value) override {
    int64_t largest = value;
    Run([&](MPI_Request* request) {
      MPI_CALL(MPI_Iallreduce(&value, &largest, 1, MPI_INT64_T, MPI_MAX, comm_.Get(), request));
    });
    return largest;
  }

  uint64_t Or(uint64_t bits) override {
    uint64_t all = bits;
    Run([&](MPI_Request* request) {
      MPI_CALL(MPI_Iallreduce(&bits, &all, 1, MPI_UINT64_T, MPI_BOR, comm_.Get(), request));
    });
    return all;
  }

  /// In rounds of one part per message: a poll copies at most a few parts while it holds the lock, and no memory of
  /// another size is needed.
  void Exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override {
    int64_t most = 0;
    for (const auto& list : {sends, receives})
      for (const Parcel& parcel : list) most = std::max(most, parcel.bytes);
    for (int64_t at = 0; at < most; at += kExchangedPart) {
      std::vector<MPI_Request> requests;
      {
        std::lock_guard lock(state_.mutex);
        for (const Parcel& parcel : receives)
          if (const int n = PartOf(parcel, at); n > 0)
            MPI_CALL(MPI_Irecv(parcel.data + at, n, MPI_BYTE, parcel.rank, kExchangeTag, comm_.Get(),
                               &requests.emplace_back(MPI_REQUEST_NULL)));
        for (const Parcel& parcel : sends)
          if (const int n = PartOf(parcel, at); n > 0)
            MPI_CALL(MPI_Isend(parcel.data + at, n, MPI_BYTE, parcel.rank, kExchangeTag, comm_.Get(),
                               &requests.emplace_back(MPI_REQUEST_NULL)));
      }
      AwaitAll(state_, requests);
    }
  }

  void Fail(const std::string& message, ExitStatus status) override { FailWorld(state_, message, status); }

 private:
  /// Bytes of the part of a message that begins at `at`.
  static int PartOf(const Parcel& parcel, int64_t at) {
    return static_cast<int>(std::clamp<int64_t>(parcel.bytes - at, 0, kExchangedPart));
  }

  template <typename Start>
  void Run(Start start) {
    MPI_Request request = MPI_REQUEST_NULL;
    {
      std::lock_guard lock(state_.mutex);
      start(&request);
    }
    AwaitAll(state_, {&request, 1});
  }

  /// Starts a transfer of `size` bytes in parts: start(offset, bytes, request).
  template <typename Start>
  void Parts(int64_t size, std::vector<MPI_Request>& requests, Start start) {
    std::lock_guard lock(state_.mutex);
    for (int64_t at = 0; at < size; at += kLargestPart)
      start(at, static_cast<int>(std::min(kLargestPart, size - at)), &requests.emplace_back(MPI_REQUEST_NULL));
  }

  MpiState& state_;
  MpiComm comm_;
};

std::unique_ptr<World> DuplicateWorld(MpiState& state) {
  std::lock_guard lock(state.mutex);
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_CALL(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  return std::make_unique<CommWorld>(state, MpiComm(comm));
}

void FindNode(MpiState& state) {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_CALL(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
  MPI_CALL(MPI_Comm_rank(node, &state.node_rank));
  int members = 0;
  MPI_CALL(MPI_Comm_size(node, &members));
  state.node_members.resize(static_cast<size_t>(members));
  MPI_CALL(MPI_Allgather(&state.rank, 1, MPI_INT, state.node_members.data(), 1, MPI_INT, node));
  MPI_CALL(MPI_Comm_free(&node));
  state.shares_cores = members > static_cast<int>(std::thread::hardware_concurrency());
}

std::unique_ptr<MpiState> StartMpi() {
  int given = MPI_THREAD_SINGLE;
  MPI_CALL(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given));
  MPI_CALL(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  auto state = std::make_unique<MpiState>();
  MPI_CALL(MPI_Comm_rank(MPI_COMM_WORLD, &state->rank));
  MPI_CALL(MPI_Comm_size(MPI_COMM_WORLD, &state->size));
  CHECK(given >= MPI_THREAD_SERIALIZED,
        "this MPI library does not let several threads take turns (MPI_THREAD_SERIALIZED)");
  FindNode(*state);
  return state;
}

}  // namespace

void AwaitAll(MpiState& state, std::span<MPI_Request> requests) {
  if (requests.empty()) return;
  Pause pause(state.shares_cores);
  while (true) {
    int done = 0;
    {
      std::lock_guard lock(state.mutex);
      MPI_CALL(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    }
    if (done != 0) return;
    pause.Rest();
  }
}

bool StartedByLauncher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

MpiWorld::MpiWorld()
    : state_(StartMpi()), world_(DuplicateWorld(*state_)), exceptions_at_start_(std::uncaught_exceptions()) {}

MpiWorld::~MpiWorld() {
  if (std::uncaught_exceptions() > exceptions_at_start_)
    Fail("an exception leaves this rank while others may wait for it");
  world_.reset();
  MPI_Finalize();
}

int MpiWorld::Rank() const { return world_->Rank(); }
int MpiWorld::Size() const { return world_->Size(); }
void MpiWorld::Barrier() { world_->Barrier(); }
std::vector<std::string> MpiWorld::Gather(const std::string& bytes) { return world_->Gather(bytes); }
std::string MpiWorld::Broadcast(const std::string& bytes) { return world_->Broadcast(bytes); }
int64_t MpiWorld::Max(int64_t value) { return world_->Max(value); }
uint64_t MpiWorld::Or(uint64_t bits) { return world_->Or(bits); }
void MpiWorld::Exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) {
  world_->Exchange(sends, receives);
}

std::unique_ptr<World> MpiWorld::Duplicate() { return DuplicateWorld(*state_); }

int MpiWorld::NodeRank() const { return state_->node_rank; }
int MpiWorld::NodeRanks() const { return static_cast<int>(state_->node_members.size()); }
const std::vector<int>& MpiWorld::NodeMembers() const { return state_->node_members; }
bool MpiWorld::SharesCores() const { return state_->shares_cores; }

void MpiWorld::BeforeAbort(std::function<void()> work) { before_abort = std::move(work); }
void MpiWorld::Abort(int status) { AbortMpi(status); }
void MpiWorld::Fail(const std::string& message, ExitStatus status) { FailWorld(*state_, message, status); }

}  // namespace espalier
