// CRC-32C against published vectors; the instruction, the table and computation in parts agree.
#include "espalier/util/crc32c.hpp"

#include <gtest/gtest.h>

#include <random>

namespace espalier {
namespace {

TEST(Crc32c, AgreesWithPublishedVectors) {  // RFC 3720, B.4
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  const std::string zeros(32, '\0'), ones(32, '\xff');
  EXPECT_EQ(Crc32c(zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones.data(), 32), 0x62a8ab43u);
  std::string counting;
  for (int i = 0; i < 32; ++i) counting += static_cast<char>(i);
  EXPECT_EQ(Crc32c(counting.data(), 32), 0x46dd794eu);
  EXPECT_EQ(Crc32c("", 0), 0u);
}

TEST(Crc32c, HardwareTableAndPartsAgree) {
  std::mt19937 random(7);
  std::string data(200'003, '\0');
  for (char& c : data) c = static_cast<char>(random());
  for (size_t bytes : {0, 1, 7, 8, 9, 4095, 49151, 49152, 49153, 100'001, 200'000}) {
    const char* begin = data.data() + 3;  // unaligned
    const uint32_t whole = Crc32cPortable(begin, bytes);
    EXPECT_EQ(Crc32c(begin, bytes), whole) << bytes;
    const size_t first = bytes / 3;
    EXPECT_EQ(Crc32c(begin + first, bytes - first, Crc32c(begin, first)), whole) << bytes;
    EXPECT_EQ(Crc32cCombine(Crc32c(begin, first), Crc32c(begin + first, bytes - first), bytes - first), whole) << bytes;
  }
}

}  // namespace
}  // namespace espalier
