// A member of an aggregate that has no default.
#pragma once

#include <utility>

namespace espalier {

/// An initialiser that leaves out a member of this type does not compile.
template <typename T>
class NoDefault {
 public:
  constexpr NoDefault(T value) : value_(std::move(value)) {}
  constexpr operator const T&() const { return value_; }

 private:
  T value_;
};

}  // namespace espalier
