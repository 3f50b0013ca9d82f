// NCCL_CALL(expression): errors of NCCL are errors of the environment. The message has the expression, the place and a
// hint. The caller that issues an instruction adds its label; the one that ends the job adds the rank.
#pragma once

#include <nccl.h>

namespace espalier::cuda {

/// Throws std::runtime_error; `comm` may be null.
[[noreturn]] void FailNccl(const char* file, int line, const char* expression, ncclResult_t code,
                           ncclComm_t comm = nullptr);

/// While a communicator is under construction, calls return ncclInProgress; the code that makes it waits for the end.
#define NCCL_CALL(expression)                                                                                    \
  do {                                                                                                           \
    if (const ncclResult_t nccl_code_ = (expression); nccl_code_ != ncclSuccess && nccl_code_ != ncclInProgress) \
        [[unlikely]]                                                                                             \
      ::espalier::cuda::FailNccl(__FILE__, __LINE__, #expression, nccl_code_);                                   \
  } while (false)

}  // namespace espalier::cuda
