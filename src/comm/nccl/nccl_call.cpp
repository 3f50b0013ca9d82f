#include "nccl_call.hpp"

#include <fmt/core.h>

#include <stdexcept>

namespace espalier::cuda {
namespace {

const char* Hint(ncclResult_t code) {
  switch (code) {
    case ncclUnhandledCudaError:
      return "a GPU failed, or a kernel before it: look for the first message in the log";
    case ncclSystemError:
    case ncclRemoteError:
      return "a rank or the network may have died: look for the first message in the log, and run with NCCL_DEBUG=WARN";
    case ncclInvalidUsage:
      return "do two ranks share a GPU? NCCL needs one per rank (run.transport = \"mpi\" lets ranks share)";
    default:
      return "run with NCCL_DEBUG=WARN to see more";
  }
}

}  // namespace

void FailNccl(const char* file, int line, const char* expression, ncclResult_t code, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  throw std::runtime_error(fmt::format("{}:{}: {} failed: {}{}{}\n  {}", file, line, expression,
                                       ncclGetErrorString(code), last != nullptr && *last != '\0' ? ": " : "",
                                       last != nullptr ? last : "", Hint(code)));
}

}  // namespace espalier::cuda
