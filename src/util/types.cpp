#include "espalier/util/types.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace espalier {

std::string_view Name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return "f32";
    case Dtype::kBf16: return "bf16";
    case Dtype::kI32: return "i32";
  }
  return "?";
}

int64_t Volume(const Shape& shape) {
  int64_t n = 1;
  for (int64_t extent : shape) n *= extent;
  return n;
}

std::string ToString(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

}  // namespace espalier
