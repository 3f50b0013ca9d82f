#include "data/token_file.hpp"

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

constexpr std::array<char, 8> kMagic = {'E', 'S', 'P', 'T', 'O', 'K', '\0', '\1'};

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = 1;
  uint32_t width = 0;
  uint64_t vocab = 0;
  uint64_t count = 0;
};
static_assert(sizeof(Header) == kTokenHeaderBytes);

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
  Header h;
  file.ReadAt(0, &h, kTokenHeaderBytes);
  if (h.magic != kMagic) Refuse(file.path(), "is not a token file (its first bytes are not \"ESPTOK\")");
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
  const Header header{kMagic, 1, static_cast<uint32_t>(width), static_cast<uint64_t>(vocab), ids.size()};
  const std::vector<uint16_t> narrow =
      width == TokenWidth::kU16 ? std::vector<uint16_t>(ids.begin(), ids.end()) : std::vector<uint16_t>();
  const void* body = width == TokenWidth::kU16 ? static_cast<const void*>(narrow.data()) : ids.data();
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file) Refuse(path, fmt::format("cannot write: {}", std::strerror(errno)));
  const bool written = std::fwrite(&header, sizeof header, 1, file.get()) == 1 &&
                       std::fwrite(body, static_cast<size_t>(width), ids.size(), file.get()) == ids.size();
  const bool closed = std::fclose(file.release()) == 0;
  if (!written || !closed) Refuse(path, fmt::format("cannot write: {}", std::strerror(errno)));
}

}  // namespace espalier
