#include "espalier/kernels/cuda/fill_with_numbers.hpp"

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "kernels/fp8.hpp"

namespace espalier::cuda {

void FillWithNumbers(void* data, int64_t bytes, Dtype dtype) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<std::byte> block(kBlock);
  for (int64_t i = 0; i < kBlock / SizeOf(dtype); ++i) {
    if (dtype == Dtype::kF32)
      reinterpret_cast<float*>(block.data())[i] = values(random);
    else if (dtype == Dtype::kF8E4M3)
      reinterpret_cast<uint8_t*>(block.data())[i] = ToFp8<Dtype::kF8E4M3>(values(random));
    else if (dtype == Dtype::kF8E5M2)
      reinterpret_cast<uint8_t*>(block.data())[i] = ToFp8<Dtype::kF8E5M2>(values(random));
    else if (dtype == Dtype::kF8E8M0)
      reinterpret_cast<uint8_t*>(block.data())[i] = ToE8M0(values(random));
    else
      reinterpret_cast<Bf16*>(block.data())[i] = ToBf16(values(random));
  }
  for (int64_t at = 0; at < bytes; at += kBlock)
    CopyToDevice(static_cast<std::byte*>(data) + at, block.data(), static_cast<size_t>(std::min(kBlock, bytes - at)));
}

}  // namespace espalier::cuda
