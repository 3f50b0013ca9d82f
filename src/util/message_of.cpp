#include "espalier/util/message_of.hpp"

#include <fmt/core.h>

#include <new>

namespace espalier {

std::string MessageOf(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return fmt::format("{}: the system has no more memory (use fewer ranks on this node, or a node with more)",
                       error.what());
  return error.what();
}

}  // namespace espalier
