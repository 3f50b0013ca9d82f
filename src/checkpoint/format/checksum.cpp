#include "checkpoint/format/checksum.hpp"

#include <algorithm>
#include <memory>
#include <numeric>

#include "espalier/util/crc32c.hpp"

namespace espalier {
namespace {

/// Computes the checksum of a file from the checksums of its extents, crc_of(index), and from the bytes around them,
/// which it reads.
template <typename CrcOf>
uint32_t Walk(const File& file, const std::vector<Extent>& extents, const CrcOf& crc_of) {
  std::vector<size_t> order(extents.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return extents[a].offset < extents[b].offset; });
  uint32_t whole = 0;
  int64_t at = 0;
  const auto append = [&](uint32_t crc, int64_t bytes) {
    whole = Crc32cCombine(whole, crc, static_cast<uint64_t>(bytes));
    at += bytes;
  };
  const auto append_up_to = [&](int64_t end) { append(ChecksumExtent(file, {at, end - at}), end - at); };
  for (size_t i : order) {
    append_up_to(extents[i].offset);
    append(crc_of(i), extents[i].bytes);
  }
  append_up_to(file.Bytes());
  return whole;
}

}  // namespace

uint32_t ChecksumExtent(const File& file, const Extent& extent) {
  const auto buffer = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(std::min(kChunkBytes, extent.bytes)));
  uint32_t crc = 0;
  for (int64_t at = 0; at < extent.bytes; at += kChunkBytes) {
    const int64_t bytes = std::min(kChunkBytes, extent.bytes - at);
    file.Read(buffer.get(), bytes, extent.offset + at);
    crc = Crc32c(buffer.get(), static_cast<size_t>(bytes), crc);
  }
  return crc;
}

Checksums ChecksumFile(const File& file, const std::vector<Extent>& extents) {
  Checksums sums;
  sums.extents.resize(extents.size());
  sums.whole = Walk(file, extents, [&](size_t i) { return sums.extents[i] = ChecksumExtent(file, extents[i]); });
  return sums;
}

uint32_t ChecksumAround(const File& file, const std::vector<Extent>& extents, const std::vector<uint32_t>& crcs) {
  return Walk(file, extents, [&](size_t i) { return crcs[i]; });
}

}  // namespace espalier
