#include "espalier/data/token_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "data/formats/token_header.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

[[noreturn]] void Refuse(const std::string& path, const std::string& what) {
  throw UserError(ExitStatus::kData, fmt::format("{}: {}", path, what));
}

void RequireOk(bool good, const std::string& path) {
  if (!good) throw UserError(ExitStatus::kFault, fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
}

}  // namespace

TokenWidth WidthFor(int64_t vocab) { return vocab <= 65536 ? TokenWidth::kU16 : TokenWidth::kU32; }

TokenWriter::TokenWriter(const std::string& path, int64_t tokens, int64_t vocab, TokenWidth width)
    : path_(path), left_(tokens), vocab_(vocab), width_(width), file_(std::fopen(path.c_str(), "wb"), std::fclose) {
  RequireOk(file_ != nullptr, path);
  const int64_t limit = width == TokenWidth::kU16 ? 65536 : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  if (vocab < 1 || vocab > limit)
    Refuse(path,
           fmt::format("a vocabulary of {} in {} bytes a token; allowed: 1 to {}", vocab, uint32_t(width), limit));
  const TokenHeader header{kTokenMagic, 1, static_cast<uint32_t>(width), static_cast<uint64_t>(vocab),
                           static_cast<uint64_t>(tokens)};
  RequireOk(std::fwrite(&header, sizeof header, 1, file_.get()) == 1, path);
}

void TokenWriter::Append(std::span<const int32_t> ids) {
  const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= vocab_; });
  if (bad != ids.end()) Refuse(path_, fmt::format("a token is {}; allowed: 0 to {}", *bad, vocab_ - 1));
  left_ -= std::ssize(ids);
  CHECK(left_ >= 0, "{}: more tokens than announced", path_);
  const void* body = ids.data();
  std::vector<uint16_t> narrow;
  if (width_ == TokenWidth::kU16) {
    narrow.assign(ids.begin(), ids.end());
    body = narrow.data();
  }
  RequireOk(std::fwrite(body, static_cast<size_t>(width_), ids.size(), file_.get()) == ids.size(), path_);
}

void TokenWriter::Finish() {
  CHECK(left_ == 0, "{}: {} tokens are missing", path_, left_);
  RequireOk(std::fflush(file_.get()) == 0 && fsync(fileno(file_.get())) == 0, path_);
  RequireOk(std::fclose(file_.release()) == 0, path_);
}

}  // namespace espalier
