// Copies and reductions on the device against those on the host, bit by bit: many in one launch, any type, odd sizes
// and places.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "comm/nccl/job_tables.hpp"

namespace espalier::cuda {
namespace {

std::mt19937 random_engine(7);

int64_t Draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_engine); }

constexpr size_t kSpace = 24 << 20;

/// Finite numbers in every type, of very different sizes, so that the order of additions shows.
const std::vector<std::byte>& MessageNumbers() {
  static const std::vector<std::byte> numbers = [] {
    std::vector<std::byte> memory(kSpace);
    for (size_t i = 0; i + 2 <= kSpace; i += 2) {
      const uint32_t bits = static_cast<uint32_t>(random_engine());
      const Bf16 x =
          ToBf16(std::ldexp(static_cast<float>(bits % 2001) - 1000.0f, static_cast<int>(bits >> 16) % 24 - 12));
      std::memcpy(memory.data() + i, &x, sizeof x);
    }
    return memory;
  }();
  return numbers;
}

/// A box of `extents` somewhere in a larger tensor at `base`; `margin` is the difference in each dim.
View BoxIn(std::byte* base, Dtype dtype, const Shape& extents, int64_t margin) {
  Tensor tensor{base, dtype, extents, Shape(extents.size(), 0)};
  Box box;
  for (size_t d = 0; d < extents.size(); ++d) {
    const int64_t before = Draw(0, margin);
    tensor.shape[d] += margin;
    box.push_back({before, before + extents[d]});
  }
  return ViewOf(tensor, box);
}

Shape DrawExtents() {
  constexpr int64_t kTypical[] = {1, 2, 3, 4, 7, 8, 16};
  Shape extents;
  for (int64_t d = Draw(1, 4); d > 0; --d) extents.push_back(kTypical[Draw(0, 6)]);
  if (extents.size() < 3 && Draw(0, 3) == 0) extents.back() = 5000;
  return extents;
}

Dtype DrawType() { return std::vector{Dtype::kF32, Dtype::kBf16, Dtype::kI32}[static_cast<size_t>(Draw(0, 2))]; }

TEST(Boxes, CopiesAreTheHostsCopies) {
  for (int round = 0; round < 8; ++round) {
    std::vector<std::byte> target(kSpace), expected(kSpace);
    std::vector<StridedCopy> copies, host;
    std::byte* at = target.data();
    for (int i = 0; i < 30; ++i) {
      const Dtype dtype = DrawType();
      const Shape extents = DrawExtents();
      at += Draw(0, 3) == 0 ? SizeOf(dtype) : (64 - static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % 64));
      const View to = BoxIn(at, dtype, extents, Draw(0, 2));
      auto* from = const_cast<std::byte*>(MessageNumbers().data()) + 4 * Draw(0, 8);
      copies.push_back(MakeCopy(to, BoxIn(from, dtype, extents, Draw(0, 4) * 2)));
      at = to.base + (to.extents[0] + 2) * to.strides[0];
      ASSERT_LT(at - target.data(), static_cast<int64_t>(kSpace) - (1 << 20));
    }
    for (StridedCopy copy : copies) {
      copy.to = expected.data() + (copy.to - target.data());
      espalier::Run(copy);
    }
    Tables tables;
    const Table<CopyJob>& table = tables.Copies({&copies});
    tables.Upload();
    LaunchCopies(table.d_jobs, static_cast<int>(table.jobs.size()), table.tiles, nullptr);
    EXPECT_EQ(target, expected) << "round " << round;
  }
}

TEST(Boxes, JoinsAreTheHostsJoins) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::byte> memory = MessageNumbers(), expected = memory;
    std::vector<Reduction> reductions;
    std::byte* at = memory.data();
    const int64_t members = Draw(2, 5);
    for (int i = 0; i < 4; ++i) {
      const Dtype dtype = DrawType();
      const Shape extents = DrawExtents();
      const int64_t bytes = Volume(extents) * SizeOf(dtype);
      Reduction reduction{dtype,
                          dtype != Dtype::kI32 && Draw(0, 1) == 0 ? Reduce::kSum : Reduce::kMax,
                          {},
                          static_cast<size_t>(Draw(0, members - 1)),
                          {}};
      for (int64_t m = 0; m < members; ++m) {
        reduction.sources.push_back(at);
        at += (bytes + 63) / 64 * 64 + (Draw(0, 3) == 0 ? SizeOf(dtype) : 0);
      }
      const View own = BoxIn(at, dtype, extents, Draw(0, 1) * 8);
      at = own.base + (own.extents[0] + 8) * own.strides[0];
      at += 64 - static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % 64);
      // On its own shard if that is dense, or elsewhere.
      const View to = own.IsDense() && Draw(0, 1) == 0 ? own : PackedAt(at, own);
      at += (bytes + 63) / 64 * 64;
      reduction.own = MakeCopy(to, own);
      reductions.push_back(reduction);
      ASSERT_LT(at - memory.data(), static_cast<int64_t>(kSpace));
    }
    for (Reduction reduction : reductions) {
      const auto moved = [&](const std::byte* p) { return expected.data() + (p - memory.data()); };
      reduction.own.to = moved(reduction.own.to);
      reduction.own.from = moved(reduction.own.from);
      for (const std::byte*& source : reduction.sources) source = moved(source);
      espalier::Run(reduction);
    }
    Tables tables;
    const Table<ReduceJob>& table = tables.Reductions(reductions);
    tables.Upload();
    LaunchReductions(table.d_jobs, static_cast<int>(table.jobs.size()), table.tiles, nullptr);
    EXPECT_EQ(memory, expected) << "round " << round;
  }
}

TEST(Boxes, UnitsAreAsWideAsPlacesAndStepsAllow) {
  alignas(64) static std::byte memory[4096];
  const Tensor from{memory, Dtype::kBf16, {4, 24}, {0, 0}};
  const auto width = [&](const Box& box, int64_t to) {
    const View view = ViewOf(from, box);
    return UnitsOf(MakeCopy(PackedAt(memory + 2048 + to, view), view), 2, true).width;
  };
  EXPECT_EQ(width({{0, 4}, {0, 24}}, 0), 16) << "one run";
  EXPECT_EQ(width({{0, 4}, {8, 24}}, 0), 16) << "runs of 32 bytes, 48 apart";
  EXPECT_EQ(width({{0, 4}, {4, 24}}, 0), 8);
  EXPECT_EQ(width({{0, 4}, {8, 24}}, 4), 4);
  EXPECT_EQ(width({{0, 4}, {1, 24}}, 0), 2);
}

TEST(Boxes, NothingIsLaunchedForNothing) {
  Tables tables;
  const std::vector<StridedCopy> none;
  const Table<CopyJob>& copies = tables.Copies({&none});
  const Table<ReduceJob>& reductions = tables.Reductions({});
  tables.Upload();
  LaunchCopies(copies.d_jobs, 0, copies.tiles, nullptr);
  LaunchReductions(reductions.d_jobs, 0, reductions.tiles, nullptr);
}

}  // namespace
}  // namespace espalier::cuda
