// How the program reports the error that ended it, on standard error.
#pragma once

#include <exception>

#include "espalier/util/error.hpp"

namespace espalier {

/// Prints the error's messages, on rank 0 only if all ranks have the same. Returns the exit status.
int ReportUserError(const UserError& error);

/// Prints an internal error or an unexpected exception: "espalier: KIND (rank 3): ...". Returns the exit status.
int ReportFault(const char* kind, const std::exception& error);

}  // namespace espalier
