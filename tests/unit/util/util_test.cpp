#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "espalier/mesh/zigzag.hpp"
#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/util/philox.hpp"
#include "espalier/util/print.hpp"
#include "espalier/util/types.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

TEST(Wrap, C14BreaksAtBlanks) {
  EXPECT_EQ(Wrap("one two three", 13, 2), "one two three");
  EXPECT_EQ(Wrap("one two three", 12, 2), "one two\n  three");
  EXPECT_EQ(Wrap("  key (a number, default 1)  ", 16, 6), "  key (a number,\n      default 1)");
  EXPECT_EQ(Wrap("a longerthanaline b", 6, 1), "a\n longerthanaline\n b");
  EXPECT_EQ(Wrap("", 6, 1), "");
}

using Words4 = std::array<uint32_t, 4>;

// The known-answer vectors of Random123 1.14, kat_vectors, "philox4x32 10".
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Computed with Python's integers from doc/numerics.md.
TEST(Philox, KeysAreThoseOfTheDocument) {
  EXPECT_EQ(Mix64(0), 16294208416658607535u);
  EXPECT_EQ(Mix64(1), 10451216379200822465u);
  EXPECT_EQ(StreamKey(1234, "model.embed_tokens.weight"), 0x6221b2b7e8a8b9d5u);
  EXPECT_EQ(StreamKey(-5, ""), 0x3fef7c59bec12efu);
}

// Computed with Python's math module from doc/numerics.md.
TEST(Philox, NormalsAreThoseOfTheDocument) {
  const auto at = [](int64_t element) { return NormalAt(1234, "model.embed_tokens.weight", element); };
  EXPECT_NEAR(at(0), -0.9372812807031436, 1e-14);
  EXPECT_NEAR(at(1), 1.1076516721804939, 1e-14);
  EXPECT_NEAR(at(2), 0.4757059018123815, 1e-14);
  EXPECT_NEAR(at(3), 0.8211692230492795, 1e-14);
  EXPECT_NEAR(at(4), -0.37590730310977977, 1e-14);
  EXPECT_NEAR(at(1001), -0.876265026403834, 1e-14);
  EXPECT_NEAR(at((int64_t{1} << 34) + 7), 1.102327875951583, 1e-14);
}

TEST(Philox, AnyRunGivesTheBitsOfItsElements) {
  const uint64_t key = StreamKey(7, "w");
  for (int64_t first : {0, 1, 2, 3, 253, 1021}) {
    for (int64_t count : {0, 1, 3, 5, 255, 256, 257, 1030}) {
      std::vector<float> run(static_cast<size_t>(count) + 1, 99.0f);
      FillNormalRun(run.data(), key, first, count, 0.02);
      for (int64_t i = 0; i < count; ++i) {
        const float one = static_cast<float>(0.02 * NormalAt(7, "w", first + i));
        ASSERT_EQ(std::bit_cast<uint32_t>(run[static_cast<size_t>(i)]), std::bit_cast<uint32_t>(one))
            << "first " << first << " count " << count << " element " << i;
      }
      EXPECT_EQ(run.back(), 99.0f);
    }
  }
}

TEST(Philox, MatchesTheMathLibrary) {
  const uint64_t key = StreamKey(3, "m");
  const std::array<uint32_t, 2> words = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  for (uint32_t block = 0; block < 50000; ++block) {
    const Words4 w = Philox4x32({block, 0, 0, 0}, words);
    for (size_t pair = 0; pair < 2; ++pair) {
      const double radius = std::sqrt(-2.0 * std::log((w[2 * pair] + 0.5) * 0x1p-32));
      const double angle = 2.0 * M_PI * (w[2 * pair + 1] * 0x1p-32);
      const int64_t element = int64_t{4} * block + 2 * static_cast<int64_t>(pair);
      ASSERT_NEAR(NormalAt(3, "m", element), radius * std::cos(angle), 1e-14);
      ASSERT_NEAR(NormalAt(3, "m", element + 1), radius * std::sin(angle), 1e-14);
    }
  }
}

// Compares bits, not only values: a hash of a million of them, the same on every machine and at every optimisation
// level.
TEST(Philox, BitsAreFixed) {
  std::vector<float> x(1 << 20);
  FillNormalRun(x.data(), StreamKey(1, "x"), 0, static_cast<int64_t>(x.size()), 1.0);
  uint64_t hash = 0;
  for (float f : x) hash = hash * 1099511628211u ^ std::bit_cast<uint32_t>(f);
  EXPECT_EQ(hash, 17737134038156083137u);
}

TEST(Philox, MomentsAreNormal) {
  constexpr int64_t kCount = 1 << 21;
  std::vector<float> x(kCount);
  FillNormalRun(x.data(), StreamKey(11, "moments"), 5, kCount, 1.0);
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    sum += v;
    squares += v * v;
    cubes += v * v * v;
    fourths += v * v * v * v;
    neighbours += v * x[(i + 1) % x.size()];
  }
  // Bounds of five standard errors.
  const double error = 5.0 / std::sqrt(double(kCount));
  EXPECT_NEAR(sum / kCount, 0.0, error);
  EXPECT_NEAR(squares / kCount, 1.0, error * std::sqrt(2.0));
  EXPECT_NEAR(cubes / kCount, 0.0, error * std::sqrt(15.0));
  EXPECT_NEAR(fourths / kCount, 3.0, error * std::sqrt(96.0));
  EXPECT_NEAR(neighbours / kCount, 0.0, error);
  EXPECT_LT(*std::max_element(x.begin(), x.end()), 6.8f);
}

TEST(Philox, SeedsAndNamesGiveOtherStreams) {
  EXPECT_NE(NormalAt(1, "a", 0), NormalAt(2, "a", 0));
  EXPECT_NE(NormalAt(1, "a", 0), NormalAt(1, "b", 0));
  EXPECT_NE(NormalAt(0, "a", 0), NormalAt(-1, "a", 0));
  EXPECT_THROW(NormalAt(1, "a", -1), InvariantError);
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(ToBf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(ToBf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isinf(ToFloat(ToBf16(std::bit_cast<float>(0x7f7fffffu)))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(ToFloat(Bf16{0xc049}), -3.140625f);
}

TEST(Types, NamesSizesAndShapes) {
  EXPECT_EQ(Name(Dtype::kBf16), "bf16");
  EXPECT_EQ(SizeOf(Dtype::kBf16), 2);
  EXPECT_EQ(SizeOf(Dtype::kI32), 4);
  EXPECT_EQ(Volume({}), 1);
  EXPECT_EQ(Volume({3, 0, 5}), 0);
  EXPECT_EQ(Volume({3, 7, 5}), 105);
  EXPECT_EQ(ToString(Shape{3, 7}), "[3,7]");
}

TEST(Zigzag, EveryRankHasAnEarlyAndALateChunk) {
  const std::vector<int64_t> expected = {0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7};  // ranks of 3: chunks 0 5, 1 4, 2 3
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(ZigzagPosition(i, 12, 3), expected[static_cast<size_t>(i)]) << i;
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(ZigzagPosition(i, 7, 1), i);
}

TEST(Zigzag, CausalWorkIsEven) {
  for (int64_t cp : {2, 3, 4, 8}) {
    const int64_t length = 10 * cp, part = length / cp;
    int64_t first = 0;
    for (int64_t rank = 0; rank < cp; ++rank) {
      int64_t seen = 0;
      for (int64_t i = 0; i < part; ++i) seen += ZigzagPosition(rank * part + i, length, cp) + 1;
      if (rank == 0) first = seen;
      EXPECT_EQ(seen, first) << "rank " << rank << " of " << cp;
    }
  }
}

TEST(Errors, CarryTheirMessages) {
  const UserError error(ExitStatus::kData, std::vector<std::string>{"one", "two"});
  EXPECT_EQ(error.status(), ExitStatus::kData);
  EXPECT_STREQ(error.what(), "one\ntwo");
  try {
    CHECK(1 == 2, "value {}", 5);
    FAIL();
  } catch (const InvariantError& broken) {
    EXPECT_NE(std::string(broken.what()).find("value 5 (1 == 2)"), std::string::npos);
  }
}

TEST(Environment, UnknownValuesAreRefused) {
  unsetenv("ESPALIER_ISA");
  CheckEnvironment();
  setenv("ESPALIER_ISA", "avx2", 1);
  CheckEnvironment();
  EXPECT_EQ(FromEnvironment("ESPALIER_ISA"), "avx2");
  setenv("ESPALIER_ISA", "bogus", 1);
  setenv("ESPALIER_CUDA_GRAPH", "yes", 1);
  try {
    CheckEnvironment();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kDeck);
    EXPECT_EQ(error.messages().size(), 2u);
    EXPECT_NE(error.messages()[1].find("ESPALIER_ISA = \"bogus\" (allowed: sse2, avx2"), std::string::npos)
        << error.what();
  }
  unsetenv("ESPALIER_ISA");
  unsetenv("ESPALIER_CUDA_GRAPH");
}

TEST(Numbers, C15ANanHasNoSign) {
  EXPECT_EQ(fmt::format("{}", PlainNan(-std::nan(""))), "nan");
  EXPECT_EQ(PlainNan(-2.5), -2.5);
}

class Groups : public ::testing::Test {
 protected:
  ~Groups() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string root_ = (std::filesystem::temp_directory_path() / fmt::format("groups.{}", getpid())).string();
};

TEST_F(Groups, A4Version2UpToTheRoot) {
  Write("/proc/self/cgroup", "0::/slurm/job_7/task_0\n");
  Write("/sys/fs/cgroup/slurm/job_7/task_0/memory.max", "max\n");
  Write("/sys/fs/cgroup/slurm/job_7/memory.max", "1500000000\n");
  Write("/sys/fs/cgroup/slurm/job_7/memory.current", "700000000\n");
  Write("/sys/fs/cgroup/slurm/job_7/memory.stat", "anon 5\ninactive_file 200000000\nactive_file 100000000\n");
  const std::vector<MemoryLimit> limits = GroupLimits(root_);
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].available, 1100000000) << "page cache counts as free";
  EXPECT_EQ(limits[0].what, "control group /slurm/job_7 (limit 1.5 GB)");
}

TEST_F(Groups, A4Version1BesideAnEmptyVersion2) {
  Write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/seven\n0::/\n");
  Write("/sys/fs/cgroup/memory/jobs/seven/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/jobs/seven/memory.usage_in_bytes", "50\n");
  Write("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "3000000\n");
  Write("/sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "4000000\n");
  Write("/sys/fs/cgroup/memory/jobs/memory.stat", "total_active_file 500000\ntotal_inactive_file 0\n");
  const std::vector<MemoryLimit> limits = GroupLimits(root_);
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].available, 0) << "a group above its limit has nothing left";
}

}  // namespace
}  // namespace espalier
