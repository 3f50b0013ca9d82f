// NCCL_CALL(expression): NCCL's errors are the environment's: they say expression, place and what to look at. Who
// issues an instruction adds its label, who ends the job the rank.
#pragma once

#include <nccl.h>

namespace espalier::cuda {

/// Throws std::runtime_error; `comm` may be null.
[[noreturn]] void FailNccl(const char* file, int line, const char* expression, ncclResult_t code,
                           ncclComm_t comm = nullptr);

/// Calls of communicators under construction return ncclInProgress; who makes them waits for their end.
#define NCCL_CALL(expression)                                                                                    \
  do {                                                                                                           \
    if (const ncclResult_t nccl_code_ = (expression); nccl_code_ != ncclSuccess && nccl_code_ != ncclInProgress) \
        [[unlikely]]                                                                                             \
      ::espalier::cuda::FailNccl(__FILE__, __LINE__, #expression, nccl_code_);                                   \
  } while (false)

}  // namespace espalier::cuda
