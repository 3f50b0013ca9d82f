// The format "tokens": a header of 32 bytes and flat little-endian ids (doc/data.md).

#include <limits>

#include "data/formats/flat_ids.hpp"
#include "data/formats/token_header.hpp"
#include "espalier/data/token_writer.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void CheckWritable(const std::string& path, std::span<const int32_t> ids, int64_t vocab, TokenWidth width) {
  const int64_t limit = width == TokenWidth::kU16 ? 65536 : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  if (vocab < 1 || vocab > limit) {
    RefuseData(path,
               fmt::format("a vocabulary of {} in {} bytes a token; allowed: 1 to {}", vocab, uint32_t(width), limit));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      RefuseData(path, fmt::format("token {} is {}; allowed: 0 to {}", i, ids[i], vocab - 1));
    }
  }
}

TokenHeader ReadHeader(const InputFile& file) {
  if (file.bytes() < kTokenHeaderBytes) {
    RefuseData(file.path(), fmt::format("{} bytes are too few for the header of a token file ({})", file.bytes(),
                                        kTokenHeaderBytes));
  }
  TokenHeader h;
  file.ReadAt(0, &h, kTokenHeaderBytes);
  if (h.magic != kTokenMagic) RefuseData(file.path(), "is not a token file (its first bytes are not \"ESPTOK\")");
  if (h.version != 1) RefuseData(file.path(), fmt::format("version {} of the token format; known: 1", h.version));
  if (h.width != 2 && h.width != 4) RefuseData(file.path(), fmt::format("{} bytes a token; allowed: 2 or 4", h.width));
  if (h.vocab < 1 || h.vocab > uint64_t{1} << 31) RefuseData(file.path(), fmt::format("a vocabulary of {}", h.vocab));
  const auto body = static_cast<uint64_t>(file.bytes() - kTokenHeaderBytes);
  if (body % h.width != 0 || body / h.width != h.count) {
    RefuseData(file.path(),
               fmt::format("has {} bytes of tokens; its header says {} tokens of {} bytes", body, h.count, h.width));
  }
  return h;
}

}  // namespace

std::unique_ptr<FileReader> OpenTokens(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  const TokenHeader header = ReadHeader(open.Get(path));
  const auto vocab = static_cast<int64_t>(header.vocab);
  CheckVocabulary(path, vocab, " (byte 16)", settings);
  return std::make_unique<FlatReader>(FlatIds{path, header.width == 2 ? IdType::kU16 : IdType::kU32, kTokenHeaderBytes,
                                              static_cast<int64_t>(header.count), vocab});
}

void WriteTokens(const std::string& path, std::span<const int32_t> ids, int64_t vocab, TokenWidth width) {
  CheckWritable(path, ids, vocab, width);
  TokenWriter writer(path, std::ssize(ids), vocab, width);
  writer.Append(ids);
  writer.Finish();
}

}  // namespace espalier
