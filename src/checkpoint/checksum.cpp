#include "checkpoint/checksum.hpp"

#include <algorithm>
#include <numeric>

#include "espalier/util/crc32c.hpp"

namespace espalier {
namespace {
constexpr int64_t kChunk = 1 << 20;
}

uint32_t ChecksumExtent(const File& file, const Extent& extent) {
  std::vector<char> buffer(static_cast<size_t>(std::min(kChunk, extent.bytes)));
  uint32_t crc = 0;
  for (int64_t at = 0; at < extent.bytes; at += kChunk) {
    const int64_t bytes = std::min(kChunk, extent.bytes - at);
    file.Read(buffer.data(), bytes, extent.offset + at);
    crc = Crc32c(buffer.data(), static_cast<size_t>(bytes), crc);
  }
  return crc;
}

Checksums ChecksumFile(const File& file, const std::vector<Extent>& extents) {
  std::vector<size_t> order(extents.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return extents[a].offset < extents[b].offset; });

  Checksums sums;
  sums.extents.resize(extents.size());
  int64_t at = 0;
  const auto append = [&](int64_t end) {
    const uint32_t crc = ChecksumExtent(file, {at, end - at});
    sums.whole = Crc32cCombine(sums.whole, crc, static_cast<uint64_t>(end - at));
    at = end;
    return crc;
  };
  for (size_t i : order) {
    append(extents[i].offset);
    sums.extents[i] = append(extents[i].offset + extents[i].bytes);
  }
  append(file.Bytes());
  return sums;
}

}  // namespace espalier
