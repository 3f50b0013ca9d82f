// An array with one element per enumerator.
#pragma once

#include <array>
#include <cstddef>

namespace espalier {

/// std::array of `N` elements that the enumerators of `Enum` (0 .. N - 1) index directly.
template <typename Enum, typename T, size_t N>
struct EnumArray : std::array<T, N> {
  using std::array<T, N>::operator[];
  constexpr T& operator[](Enum e) { return (*this)[static_cast<size_t>(e)]; }
  constexpr const T& operator[](Enum e) const { return (*this)[static_cast<size_t>(e)]; }
};

}  // namespace espalier
