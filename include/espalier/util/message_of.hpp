#pragma once

#include <exception>
#include <string>

namespace espalier {

/// The message of an exception; adds a remedy where the C++ library has only a name.
std::string MessageOf(const std::exception& error);

}  // namespace espalier
