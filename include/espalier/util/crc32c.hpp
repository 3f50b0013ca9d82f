// CRC-32C (Castagnoli polynomial, as in iSCSI, RFC 3720): the checksum of checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

/// CRC-32C of `bytes` bytes, continued from `crc`: Crc32c(b, m, Crc32c(a, n)) is the CRC of a followed by b. Uses the
/// instruction of SSE4.2 or of Armv8's CRC32 in three streams where the processor has it.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc = 0);

/// The same with a table, on any processor.
uint32_t Crc32cPortable(const void* data, size_t bytes, uint32_t crc = 0);

/// The CRC-32C of a followed by b, from the CRCs of a and b and the length of b, in O(log bytes_of_b).
uint32_t Crc32cCombine(uint32_t crc_of_a, uint32_t crc_of_b, uint64_t bytes_of_b);

}  // namespace espalier
