#pragma once

#include <exception>
#include <string>

namespace espalier {

/// What an exception says, with a remedy where the library of C++ says only its name.
std::string WhatOf(const std::exception& error);

}  // namespace espalier
