#include "espalier/util/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace espalier {
namespace {

// Polynomials over GF(2) are bit-reflected: bit 31 is x^0, bit 0 is x^31. Multiplying a checksum by x^(8 n) appends n
// zero bytes, so one multiplication combines the checksums of two parts (Adler, zlib's crc32_combine).
constexpr uint32_t kPolynomial = 0x82f63b78u;
constexpr uint32_t kOne = 1u << 31;

constexpr uint32_t TimesX(uint32_t a) { return (a & 1u) != 0 ? (a >> 1) ^ kPolynomial : a >> 1; }

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1, b = TimesX(b))
    if ((a & bit) != 0) product ^= b;
  return product;
}

/// x^(8 bytes) by repeated squaring.
constexpr uint32_t ZeroBytes(uint64_t bytes) {
  uint32_t power = kOne >> 8;
  uint32_t result = kOne;
  for (; bytes != 0; bytes >>= 1, power = Multiply(power, power))
    if ((bytes & 1u) != 0) result = Multiply(result, power);
  return result;
}

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t a = byte;
    for (int bit = 0; bit < 8; ++bit) a = TimesX(a);
    table[byte] = a;
  }
  return table;
}

// Processors with an instruction for this polynomial: 8 bytes or one are added to a state.
#if defined(__x86_64__)
#define ESPALIER_CRC32C __attribute__((target("sse4.2")))
ESPALIER_CRC32C uint64_t Add8(uint64_t state, uint64_t word) { return _mm_crc32_u64(state, word); }
ESPALIER_CRC32C uint32_t Add1(uint32_t state, uint8_t byte) { return _mm_crc32_u8(state, byte); }
bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#elif defined(__aarch64__) && defined(__linux__)
#define ESPALIER_CRC32C __attribute__((target("+crc")))
ESPALIER_CRC32C uint64_t Add8(uint64_t state, uint64_t word) { return __crc32cd(static_cast<uint32_t>(state), word); }
ESPALIER_CRC32C uint32_t Add1(uint32_t state, uint8_t byte) { return __crc32cb(state, byte); }
bool HasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

#ifdef ESPALIER_CRC32C

// One multiplication combines two blocks; at this size it costs a few per cent, and three blocks fit in the L2 cache.
constexpr size_t kCrcBlock = 16384;
constexpr uint32_t kCrcBlockShift = ZeroBytes(kCrcBlock);

uint64_t Word(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// The instruction takes 3 cycles but one can start each cycle, so three independent streams keep it busy.
ESPALIER_CRC32C uint32_t ThreeBlocks(const unsigned char* p, uint32_t state) {
  uint64_t a = state, b = 0, c = 0;
  for (size_t i = 0; i < kCrcBlock; i += 8) {
    a = Add8(a, Word(p + i));
    b = Add8(b, Word(p + kCrcBlock + i));
    c = Add8(c, Word(p + 2 * kCrcBlock + i));
  }
  const uint32_t ab = Multiply(static_cast<uint32_t>(a), kCrcBlockShift) ^ static_cast<uint32_t>(b);
  return Multiply(ab, kCrcBlockShift) ^ static_cast<uint32_t>(c);
}

ESPALIER_CRC32C uint32_t Hardware(const unsigned char* p, size_t bytes, uint32_t state) {
  for (; bytes >= 3 * kCrcBlock; bytes -= 3 * kCrcBlock, p += 3 * kCrcBlock) state = ThreeBlocks(p, state);
  uint64_t wide = state;
  for (; bytes >= 8; bytes -= 8, p += 8) wide = Add8(wide, Word(p));
  state = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++p) state = Add1(state, *p);
  return state;
}

#endif

}  // namespace

uint32_t Crc32cPortable(const void* data, size_t bytes, uint32_t crc) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t state = ~crc;
  for (size_t i = 0; i < bytes; ++i) state = kTable[(state ^ p[i]) & 0xffu] ^ (state >> 8);
  return ~state;
}

uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc) {
#ifdef ESPALIER_CRC32C
  static const bool has_instruction = HasInstruction();
  if (has_instruction) return ~Hardware(static_cast<const unsigned char*>(data), bytes, ~crc);
#endif
  return Crc32cPortable(data, bytes, crc);
}

uint32_t Crc32cCombine(uint32_t crc_of_a, uint32_t crc_of_b, uint64_t bytes_of_b) {
  return Multiply(crc_of_a, ZeroBytes(bytes_of_b)) ^ crc_of_b;
}

}  // namespace espalier
