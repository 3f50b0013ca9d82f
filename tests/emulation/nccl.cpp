// The calls of NCCL that Espalier makes, over MPI, on the host's memory. A call returns only when its peers have issued
// theirs (sends are synchronous, collectives exchange with everyone): an order that could make GPUs wait for each other
// hangs here, whatever the sizes. Sums are made in rank order, in fp32, rounded once. Calls that NCCL forbids next to
// graphs, and overlapping memory, are refused. ESPALIER_EMULATED_NCCL_ERROR=RANK:CALL: when a rank has issued so many
// calls, its communicators report an error; RANK:init: it can make none.
#include <nccl.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "comm/lowering/combine.hpp"
#include "comm/mpi/mpi_state.hpp"
#include "emulate.hpp"
#include "runtime.hpp"
#include "switches.hpp"

using espalier::MpiState;

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;  ///< none for a single rank
  int rank = 0, size = 1;
  int ctas = 0;  ///< thread blocks of a call, each on a multiprocessor of its own
  int polls_until_made = 0;
  bool in_graph = false;  ///< a call was captured
  uint32_t sums = 0;      ///< number of sums that a switch has made, from a start that differs in every run
};

namespace {

[[noreturn]] void Refuse(const char* what) {
  std::fprintf(stderr, "emulated NCCL: %s\n", what);
  std::abort();
}

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    default:
      Refuse("a type that is not emulated");
  }
}

/// Messages of one call or group.
class Messages {
 public:
  void Send(ncclComm* comm, const void* from, size_t bytes, int peer) {
    if (comm->mpi == MPI_COMM_NULL) return own_sends_.push_back({from, bytes});
    std::lock_guard lock(MpiState::mutex);
    MPI_CALL(MPI_Issend(from, static_cast<int>(bytes), MPI_BYTE, peer, 0, comm->mpi, Next(-1)));
  }
  void Receive(ncclComm* comm, void* to, size_t bytes, int peer) {
    if (comm->mpi == MPI_COMM_NULL) return own_receives_.push_back({to, bytes});
    std::lock_guard lock(MpiState::mutex);
    MPI_CALL(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, peer, 0, comm->mpi, Next(static_cast<int>(bytes))));
  }

  /// Looks whether all messages have arrived.
  espalier::emulation::Progress Look() {
    std::vector<MPI_Status> statuses(requests_.size());
    if (!Test(statuses)) return espalier::emulation::Progress::kNone;
    Finish(statuses);
    return espalier::emulation::Progress::kDone;
  }

 private:
  struct Sent {
    const void* data;
    size_t bytes;
  };
  struct Received {
    void* data;
    size_t bytes;
  };

  void Finish(const std::vector<MPI_Status>& statuses) {
    if (own_sends_.size() != own_receives_.size()) Refuse("a send to itself without its receive in the same group");
    for (size_t i = 0; i < own_sends_.size(); ++i) {
      if (own_sends_[i].bytes != own_receives_[i].bytes) Refuse("a message to itself of two sizes");
      std::memmove(own_receives_[i].data, own_sends_[i].data, own_sends_[i].bytes);
    }
    for (size_t i = 0; i < requests_.size(); ++i) CheckSize(statuses[i], bytes_[i]);
  }

  MPI_Request* Next(int bytes) {
    bytes_.push_back(bytes);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  bool Test(std::vector<MPI_Status>& statuses) {
    std::lock_guard lock(MpiState::mutex);
    int done = 1;
    if (!requests_.empty())
      MPI_CALL(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses.data()));
    return done != 0;
  }
  static void CheckSize(const MPI_Status& status, int expected) {
    int bytes = 0;
    if (expected < 0) return;
    MPI_CALL(MPI_Get_count(&status, MPI_BYTE, &bytes));
    if (bytes != expected) Refuse("a message that is shorter than its receive");
  }

  std::vector<MPI_Request> requests_;
  std::vector<int> bytes_;  ///< bytes of receives; -1: a send
  std::vector<Sent> own_sends_;
  std::vector<Received> own_receives_;
};

using Shards = std::vector<std::vector<std::byte>>;

/// Gets every member's contribution to this member's shard, by rank: member p gets the bytes at from + p * step.
void Exchange(Messages& messages, Shards& shards, ncclComm* comm, const void* from, size_t step, size_t bytes) {
  shards.assign(static_cast<size_t>(comm->size), std::vector<std::byte>(bytes));
  for (int p = 0; p < comm->size; ++p) {
    messages.Receive(comm, shards[static_cast<size_t>(p)].data(), bytes, p);
    messages.Send(comm, static_cast<const std::byte*>(from) + static_cast<size_t>(p) * step, bytes, p);
  }
}

template <typename T>
void Sum(const Shards& shards, size_t first, void* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T element;
    float sum = 0;
    for (size_t p = 0; p < shards.size(); ++p) {
      std::memcpy(&element, shards[(first + p) % shards.size()].data() + i * sizeof(T), sizeof(T));
      sum = p == 0 ? espalier::Widen(element) : sum + espalier::Widen(element);
    }
    espalier::Narrow(sum, element);
    std::memcpy(static_cast<std::byte*>(to) + i * sizeof(T), &element, sizeof(T));
  }
}

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Pieces between separators.
std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> pieces;
  std::istringstream in(text);
  for (std::string piece; std::getline(in, piece, separator);) pieces.push_back(piece);
  return pieces;
}

/// Whether a list of NCCL_ALGO, such as "^nvls,nvlstree", allows NVLS.
bool AllowsNvls(std::string list) {
  const bool without = list.starts_with('^');
  bool named = false;
  for (const std::string& name : Split(list.substr(without ? 1 : 0), ',')) {
    static const std::set<std::string> known = {"tree",     "ring", "collnetdirect", "collnetchain", "nvls",
                                                "nvlstree", "pat"};
    if (!known.contains(name)) Refuse(("NCCL_ALGO: unknown algorithm " + name).c_str());
    named |= name == "nvls";
  }
  return named != without;
}

/// Whether NCCL_ALGO lets `function` use NVLS. From 2.24 on the variable has lists by function, before it was one list.
bool AlgorithmsAllowNvls(const std::string& function) {
  const char* set = std::getenv("NCCL_ALGO");
  if (set == nullptr) return true;
  int version = 0;
  ncclGetVersion(&version);
  if (version < NCCL_VERSION(2, 24, 0) && std::strchr(set, ':') != nullptr)
    Refuse("NCCL_ALGO with functions, which is new in 2.24");
  bool allowed = true;
  for (const std::string& entry : Split(Lower(set), ';')) {
    const size_t colon = entry.find(':');
    const std::string of = colon == entry.npos ? "" : entry.substr(0, colon);
    static const std::set<std::string> known = {"", "broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
    if (!known.contains(of)) Refuse(("NCCL_ALGO: unknown function " + of).c_str());
    const bool of_list = AllowsNvls(colon == entry.npos ? entry : entry.substr(colon + 1));
    if (of.empty() || of == function) allowed = of_list;
  }
  return allowed;
}

/// With ESPALIER_EMULATED_NVLS=1, as if switches compute `function`. Its first call is printed with `say`.
bool SwitchComputes(const std::string& function) {
  const char* enabled = std::getenv("NCCL_NVLS_ENABLE");
  const bool computes = espalier::emulation::HasSwitch("ESPALIER_EMULATED_NVLS", "1") &&
                        (enabled == nullptr || std::strcmp(enabled, "0") != 0) && AlgorithmsAllowNvls(function);
  static std::set<std::string> said;
  if (computes && espalier::emulation::HasSwitch("ESPALIER_EMULATED_NVLS", "say") && said.insert(function).second)
    std::fprintf(stderr, "emulated NCCL: switches compute %s\n", function.c_str());
  return computes;
}

void Reduce(const char* function, ncclComm* comm, const Shards& shards, void* to, size_t count, ncclDataType_t type) {
  const size_t first = SwitchComputes(function) ? comm->sums++ : 0;
  if (type == ncclBfloat16)
    Sum<espalier::Bf16>(shards, first, to, count);
  else if (type == ncclFloat32)
    Sum<float>(shards, first, to, count);
  else
    Refuse("a sum of a type that is not emulated");
}

/// Sends and receives between ncclGroupStart and ncclGroupEnd, all on one stream.
struct PointToPoint {
  ncclComm* comm;
  const void* from;  ///< source of a send
  void* to;          ///< destination of a receive
  size_t bytes;
  int peer;
  cudaStream_t stream;
};

thread_local int group_depth = 0;
thread_local std::vector<PointToPoint> group;

void Post(Messages& messages, const std::vector<PointToPoint>& calls) {
  for (const PointToPoint& call : calls)
    if (call.from != nullptr)
      messages.Send(call.comm, call.from, call.bytes, call.peer);
    else
      messages.Receive(call.comm, call.to, call.bytes, call.peer);
}

ncclResult_t Add(const PointToPoint& call) {
  if (group_depth == 0) Refuse("a send or receive outside a group");
  if (call.peer < 0 || call.peer >= call.comm->size) Refuse("a peer outside the communicator");
  group.push_back(call);
  return ncclSuccess;
}

/// Without NCCL_GRAPH_MIXING_SUPPORT.
void CheckBesideGraphs(ncclComm* comm) {
  if (espalier::emulation::Capturing())
    comm->in_graph = true;
  else if (comm->in_graph && espalier::emulation::GraphUnderWay())
    Refuse("a call on a communicator that a graph under way may hold");
}

/// Checks the memory of both sides, in bytes, and the offset of one in the other if a call is in place.
void CheckInPlace(const void* from, size_t from_bytes, const void* to, size_t to_bytes, std::ptrdiff_t to_behind_from) {
  const auto *a = static_cast<const std::byte*>(from), *b = static_cast<const std::byte*>(to);
  if (a < b + to_bytes && b < a + from_bytes && b - a != to_behind_from)
    Refuse("memory that overlaps, and not as a call in place has it");
}

int WorldRank() {
  int started = 0, rank = 0;
  std::lock_guard lock(MpiState::mutex);
  MPI_CALL(MPI_Initialized(&started));
  if (started != 0) MPI_CALL(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

long calls = 0;  ///< of this process

bool ReportsError() {
  int rank = 0, call = 0;
  const std::string set = espalier::emulation::Switch("ESPALIER_EMULATED_NCCL_ERROR", "");
  return std::sscanf(set.c_str(), "%d:%d", &rank, &call) == 2 && calls >= call && WorldRank() == rank;
}

/// `post` sends and receives; `finish` runs when all messages have arrived.
ncclResult_t Issue(ncclComm* comm, cudaStream_t stream, std::function<void(Messages&)> post,
                   std::function<void()> finish) {
  if (group_depth > 0) Refuse("a collective inside a group");
  CheckBesideGraphs(comm);
  ++calls;
  const auto messages = std::make_shared<Messages>();
  const auto start = [messages, post = std::move(post)] {
    *messages = Messages();
    post(*messages);
  };
  espalier::emulation::EnqueueMessages(
      stream, start,
      [messages, finish = std::move(finish)] {
        const espalier::emulation::Progress progress = messages->Look();
        if (progress == espalier::emulation::Progress::kDone) finish();
        return progress;
      },
      comm->ctas);
  return espalier::emulation::Broken() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/// `finish` makes the result out of every member's shard.
ncclResult_t IssueExchange(ncclComm* comm, cudaStream_t stream, const void* from, size_t step, size_t bytes,
                           std::function<void(const Shards&)> finish) {
  const auto shards = std::make_shared<Shards>();
  return Issue(
      comm, stream, [=](Messages& messages) { Exchange(messages, *shards, comm, from, step, bytes); },
      [shards, finish = std::move(finish)] { finish(*shards); });
}

/// The content of a unique id. Its maker must be member 0, which NCCL does not require.
struct EmulatedId {
  char word[16] = "emulated";
  int maker = 0;   ///< world rank
  int number = 0;  ///< number among the ids that it made
};

/// World ranks of the members, who send their ranks to the maker of the id.
std::vector<int> Meet(const EmulatedId& id, int ranks, int rank) {
  const int self = WorldRank(), tag = id.number;
  std::vector<int> members(static_cast<size_t>(ranks), -1);
  std::lock_guard lock(MpiState::mutex);
  if (rank > 0) {
    const int mine[] = {rank, self};
    MPI_CALL(MPI_Send(mine, 2, MPI_INT, id.maker, tag, MPI_COMM_WORLD));
    MPI_CALL(MPI_Recv(members.data(), ranks, MPI_INT, id.maker, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    return members;
  }
  if (self != id.maker) Refuse("a member 0 that did not make the id");
  members[0] = self;
  for (int i = 1; i < ranks; ++i) {
    int other[2];
    MPI_CALL(MPI_Recv(other, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    int& member = members.at(static_cast<size_t>(other[0]));
    if (std::exchange(member, other[1]) >= 0) Refuse("two members of one number");
  }
  for (size_t i = 1; i < members.size(); ++i)
    MPI_CALL(MPI_Send(members.data(), ranks, MPI_INT, members[i], tag, MPI_COMM_WORLD));
  return members;
}

ncclResult_t Made(ncclComm_t* to, MPI_Comm mpi, const ncclConfig_t& config) {
  constexpr int kCtas = 16;
  auto* comm = new ncclComm;
  comm->ctas = config.maxCTAs == NCCL_CONFIG_UNDEF_INT ? kCtas : config.maxCTAs;
  if (mpi != MPI_COMM_NULL) {
    comm->mpi = mpi;
    MPI_CALL(MPI_Comm_rank(mpi, &comm->rank));
    MPI_CALL(MPI_Comm_size(mpi, &comm->size));
    comm->sums = std::random_device()();
    MPI_CALL(MPI_Bcast(&comm->sums, 1, MPI_UINT32_T, 0, mpi));
  }
  *to = comm;
  if (config.blocking != 0) return ncclSuccess;
  comm->polls_until_made = 2;
  return ncclInProgress;
}

}  // namespace

// NOLINTBEGIN: NCCL's names
extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = espalier::emulation::Version("NCCL", NCCL_VERSION_CODE, 10000, 100);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int number = 0;
  const EmulatedId made = {.maker = WorldRank(), .number = ++number};
  std::memcpy(id->internal, &made, sizeof made);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  EmulatedId made;
  std::memcpy(&made, id.internal, sizeof made);
  if (std::strcmp(made.word, EmulatedId().word) != 0) Refuse("a unique id that nobody made");
  if (rank < 0 || rank >= ranks) Refuse("a member outside the communicator");
  if (espalier::emulation::Switch("ESPALIER_EMULATED_NCCL_ERROR", std::to_string(WorldRank()) + ":") == "init")
    return ncclSystemError;
  if (ranks == 1) return Made(comm, MPI_COMM_NULL, *config);
  const std::vector<int> members = Meet(made, ranks, rank);
  std::lock_guard lock(MpiState::mutex);
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm mpi = MPI_COMM_NULL;
  MPI_CALL(MPI_Comm_group(MPI_COMM_WORLD, &world));
  MPI_CALL(MPI_Group_incl(world, ranks, members.data(), &group));
  MPI_CALL(MPI_Comm_create_group(MPI_COMM_WORLD, group, made.number, &mpi));
  MPI_CALL(MPI_Group_free(&group));
  MPI_CALL(MPI_Group_free(&world));
  return Made(comm, mpi, *config);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->in_graph && espalier::emulation::GraphsAlive())
    Refuse("a communicator that ends before the graphs that may hold it waits for their end");
  if (comm->mpi != MPI_COMM_NULL) {
    std::lock_guard lock(MpiState::mutex);
    MPI_CALL(MPI_Comm_free(&comm->mpi));
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm->in_graph && espalier::emulation::GraphsAlive())
    Refuse("a communicator that is aborted before the graphs that may hold it end waits for their end");
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->polls_until_made > 0 && comm->polls_until_made-- > 0 ? ncclInProgress : ncclSuccess;
  if (ReportsError()) *error = ncclRemoteError;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "an error of emulated NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0 || group.empty()) return ncclSuccess;
  std::vector<PointToPoint> calls;
  calls.swap(group);
  for (const PointToPoint& call : calls)
    if (call.stream != calls[0].stream || call.comm != calls[0].comm) Refuse("a group on two streams or communicators");
  return Issue(
      calls[0].comm, calls[0].stream, [calls](Messages& messages) { Post(messages, calls); }, [] {});
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add({comm, from, nullptr, count * SizeOf(type), peer, stream});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return Add({comm, nullptr, to, count * SizeOf(type), peer, stream});
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t bytes = count * SizeOf(type), all = bytes * static_cast<size_t>(comm->size);
  CheckInPlace(from, bytes, to, all, -static_cast<std::ptrdiff_t>(bytes) * comm->rank);
  SwitchComputes("allgather");
  return IssueExchange(comm, stream, from, 0, bytes, [=](const Shards& shards) {
    for (size_t p = 0; p < shards.size(); ++p)
      std::memcpy(static_cast<std::byte*>(to) + p * bytes, shards[p].data(), bytes);
  });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) Refuse("a reduction that is not emulated");
  const size_t bytes = count * SizeOf(type);
  CheckInPlace(from, bytes * static_cast<size_t>(comm->size), to, bytes,
               static_cast<std::ptrdiff_t>(bytes) * comm->rank);
  return IssueExchange(comm, stream, from, bytes, bytes,
                       [=](const Shards& shards) { Reduce("reducescatter", comm, shards, to, count, type); });
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) Refuse("a reduction that is not emulated");
  CheckInPlace(from, count * SizeOf(type), to, count * SizeOf(type), 0);
  return IssueExchange(comm, stream, from, 0, count * SizeOf(type),
                       [=](const Shards& shards) { Reduce("allreduce", comm, shards, to, count, type); });
}
}
// NOLINTEND
