#include "espalier/util/error.hpp"

#include <fmt/format.h>

namespace espalier {

UserError::UserError(ExitStatus status, std::vector<std::string> messages)
    : std::runtime_error(fmt::format("{}", fmt::join(messages, "\n"))),
      status_(status),
      messages_(std::move(messages)) {}

void ThrowInvariantError(const char* file, int line, const char* condition, fmt::string_view format,
                         fmt::format_args values) {
  throw InvariantError(fmt::format("{}:{}: {} ({})", file, line, fmt::vformat(format, values), condition));
}

}  // namespace espalier
