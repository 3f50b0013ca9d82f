// Errors of MPI end the job: no exception crosses a collective, and no rank waits for one that has failed.
#pragma once

#define OMPI_SKIP_MPICXX 1  // without the obsolete C++ classes
#include <mpi.h>

#include <functional>
#include <string>

namespace espalier {

/// Prints the expression, the rank, what this thread is working on and a hint, then ends all ranks with status 1.
[[noreturn]] void FailMpi(const char* expression, int code);

/// AbortMpi calls it first, and once; empty: nothing.
inline std::function<void()> before_abort;

/// Ends all ranks with `status`; this one within a few seconds, even if the launcher does not answer.
[[noreturn]] void AbortMpi(int status);

/// MPI_CALL(MPI_Isend(...)).
#define MPI_CALL(expression)                           \
  do {                                                 \
    const int mpi_call_code = (expression);            \
    if (mpi_call_code != MPI_SUCCESS) [[unlikely]]     \
      ::espalier::FailMpi(#expression, mpi_call_code); \
  } while (false)

/// Names what this thread is working on, for error messages, during the lifetime of the object.
class WorkScope {
 public:
  explicit WorkScope(const std::string& label) : before_(current_) { current_ = &label; }
  ~WorkScope() { current_ = before_; }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

  /// "outside the step" if there is none.
  static std::string Current() { return current_ != nullptr ? *current_ : "outside the step"; }

 private:
  inline static thread_local const std::string* current_ = nullptr;
  const std::string* before_;
};

}  // namespace espalier
