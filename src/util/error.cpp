#include "espalier/util/error.hpp"

#include <fmt/ranges.h>

namespace espalier {

UserError::UserError(ExitStatus status, std::vector<std::string> messages)
    : std::runtime_error(fmt::format("{}", fmt::join(messages, "\n"))),
      status_(status),
      messages_(std::move(messages)) {}

void FailCheck(const char* file, int line, const char* condition, const std::string& what) {
  throw InvariantError(fmt::format("{}:{}: {} ({})", file, line, what, condition));
}

}  // namespace espalier
