#include "data/token_file.hpp"

#include <bit>
#include <limits>

#include "espalier/data/token_writer.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

[[noreturn]] void Refuse(const std::string& path, const std::string& what) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}", path, what));
}

void CheckIds(const std::string& path, std::span<const int32_t> ids, int64_t vocab, TokenWidth width) {
  const int64_t limit = width == TokenWidth::kU16 ? 65536 : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  if (vocab < 1 || vocab > limit) {
    Refuse(path,
           fmt::format("a vocabulary of {} in {} bytes a token; allowed: 1 to {}", vocab, uint32_t(width), limit));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      Refuse(path, fmt::format("token {} is {}; allowed: 0 to {}", i, ids[i], vocab - 1));
    }
  }
}

}  // namespace

TokenFile ReadTokenHeader(const InputFile& file) {
  if (file.bytes() < kTokenHeaderBytes) {
    Refuse(file.path(),
           fmt::format("{} bytes are too few for the header of a token file ({})", file.bytes(), kTokenHeaderBytes));
  }
  TokenHeader h;
  file.ReadAt(0, &h, kTokenHeaderBytes);
  if (h.magic != kTokenMagic) Refuse(file.path(), "is not a token file (its first bytes are not \"ESPTOK\")");
  if (h.version != 1) Refuse(file.path(), fmt::format("version {} of the token format; known: 1", h.version));
  if (h.width != 2 && h.width != 4) Refuse(file.path(), fmt::format("{} bytes a token; allowed: 2 or 4", h.width));
  if (h.vocab < 1 || h.vocab > uint64_t{1} << 31) Refuse(file.path(), fmt::format("a vocabulary of {}", h.vocab));
  const auto body = static_cast<uint64_t>(file.bytes() - kTokenHeaderBytes);
  if (body % h.width != 0 || body / h.width != h.count) {
    Refuse(file.path(),
           fmt::format("has {} bytes of tokens; its header says {} tokens of {} bytes", body, h.count, h.width));
  }
  return {static_cast<TokenWidth>(h.width), static_cast<int64_t>(h.vocab), static_cast<int64_t>(h.count)};
}

void WriteTokens(const std::string& path, std::span<const int32_t> ids, int64_t vocab, TokenWidth width) {
  CheckIds(path, ids, vocab, width);
  TokenWriter writer(path, std::ssize(ids), vocab, width);
  writer.Append(ids);
  writer.Finish();
}

}  // namespace espalier
