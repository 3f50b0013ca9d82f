#include "espalier/util/types.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "espalier/util/error.hpp"

namespace espalier {

std::string_view Name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "f32";
    case Dtype::kBf16:
      return "bf16";
    case Dtype::kI32:
      return "i32";
    case Dtype::kF8E4M3:
      return "f8e4m3";
    case Dtype::kF8E5M2:
      return "f8e5m2";
    case Dtype::kF8E8M0:
      return "f8e8m0";
  }
  return "?";
}

int64_t Volume(const Shape& shape) {
  int64_t n = 1;
  for (int64_t extent : shape)
    CHECK(!__builtin_mul_overflow(n, extent, &n), "the volume of {} is beyond an int64", ToString(shape));
  return n;
}

std::string ToString(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

}  // namespace espalier
