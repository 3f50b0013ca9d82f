// State that the MPI part of this module shares.
#pragma once

#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_call.hpp"

namespace espalier {

struct MpiState {
  /// Held around every MPI call, never while waiting. One per process, like the library.
  inline static std::mutex mutex;
  int rank = 0;
  int size = 1;
  int node_rank = 0;
  std::vector<int> node_members;
  bool shares_cores = false;
};

/// Owns a communicator. Its errors return, for MPI_CALL.
class MpiComm {
 public:
  MpiComm() = default;
  explicit MpiComm(MPI_Comm comm) : comm_(comm) { MPI_CALL(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN)); }
  MpiComm(MpiComm&& other) noexcept : comm_(other.comm_) { other.comm_ = MPI_COMM_NULL; }
  MpiComm& operator=(MpiComm&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~MpiComm() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  MPI_Comm Get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Polls until all requests are done; holds the lock during each poll only.
void AwaitAll(MpiState& state, std::span<MPI_Request> requests);

}  // namespace espalier
