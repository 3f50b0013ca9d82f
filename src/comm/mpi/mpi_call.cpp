#include "comm/mpi/mpi_call.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "comm/mpi/launcher.hpp"
#include "espalier/util/print.hpp"

namespace espalier {
namespace {

const char* Hint(int error_class) {
  switch (error_class) {
    case MPI_ERR_TRUNCATE:
      return "a peer sent more than its program says: do all ranks run the same build and deck?";
    case MPI_ERR_RANK:
      return "a peer outside the communicator: an internal error, please report it";
    case MPI_ERR_NO_MEM:
      return "the node is out of memory for messages: use fewer ranks per node";
    default:
      return "a rank or the network may have died: look for the first message in the log";
  }
}

}  // namespace

void FailMpi(const char* expression, int code) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0, rank = -1, error_class = MPI_ERR_UNKNOWN;
  MPI_Error_string(code, text.data(), &length);
  MPI_Error_class(code, &error_class);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PrintError("espalier: MPI failed on rank {}, {}\n  {}\n  {}\n  {}\n", rank, WorkScope::Current(), expression,
             text.data(), Hint(error_class));
  AbortMpi(1);
}

// Without the lock: the thread that holds it may be the one that failed.
void AbortMpi(int status) {
  constexpr unsigned kPatience = 5;  // seconds
  std::fflush(nullptr);
  std::signal(SIGALRM, SIG_DFL);
  alarm(kPatience);
  if (const std::function<void()> work = std::exchange(before_abort, nullptr)) work();
  EndLauncherLater();
  MPI_Abort(MPI_COMM_WORLD, status);
  std::abort();
}

}  // namespace espalier
