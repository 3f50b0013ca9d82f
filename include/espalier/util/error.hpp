// Errors are of three kinds: errors of the user (UserError, collected and printed together), broken invariants
// (CHECK -> InvariantError) and errors of the environment (MPI_CALL, HDF5_CALL in their modules).
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace espalier {

/// Exit status of the executable; the contract with scripts (doc/deck.md lists it for users).
enum class ExitStatus : int {
  kDone = 0,        ///< every step of the deck is done
  kFault = 1,       ///< any error not named below
  kDeck = 2,        ///< the deck or the command line is wrong
  kData = 3,        ///< data or checkpoint refused
  kDoesNotFit = 4,  ///< the plan needs more memory than the machine has
  kStopped = 75,    ///< stopped early with a committed checkpoint: run again
};

/// Errors that the user can fix: every message found, with the exit status.
class UserError : public std::runtime_error {
 public:
  UserError(ExitStatus status, std::vector<std::string> messages);
  UserError(ExitStatus status, std::string message) : UserError(status, std::vector{std::move(message)}) {}

  ExitStatus status() const { return status_; }
  const std::vector<std::string>& messages() const { return messages_; }

 private:
  ExitStatus status_;
  std::vector<std::string> messages_;
};

/// A broken invariant: an internal error. The message has file and line.
class InvariantError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void ThrowInvariantError(const char* file, int line, const char* condition, fmt::string_view format,
                                      fmt::format_args values);

template <typename... Values>
[[noreturn]] void FailCheck(const char* file, int line, const char* condition, fmt::format_string<Values...> format,
                            Values&&... values) {
  ThrowInvariantError(file, line, condition, format, fmt::make_format_args(values...));
}

/// CHECK(condition, "format", values...): on in release builds too.
#define CHECK(condition, ...)                                             \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::espalier::FailCheck(__FILE__, __LINE__, #condition, __VA_ARGS__); \
  } while (false)

}  // namespace espalier
