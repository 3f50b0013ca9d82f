#include "espalier/executor/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPage = 4096;
constexpr int64_t kLine = 64;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(int64_t bytes) : bytes_(bytes) { CHECK(bytes >= 0, "an arena of {} bytes", bytes); }

HostArena::HostArena(int64_t bytes) : Arena(bytes), mapped_(RoundUp(std::max(bytes, int64_t{1}), kHugePage)) {
  void* memory =
      mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw UserError(
        ExitStatus::kDoesNotFit,
        fmt::format("rank on {}: the system gives no {} of memory in one region: use more ranks (espalier plan "
                    "shows the memory of each), or fewer on this node",
                    HostName(), Gigabytes(bytes)));
  base_ = static_cast<std::byte*>(memory);
  madvise(memory, static_cast<size_t>(mapped_), MADV_HUGEPAGE);  // only advice: without huge pages memory is slower
  for (int64_t at = 0; at < bytes; at += kPage) *const_cast<volatile std::byte*>(base_ + at) = std::byte{0};
}

HostArena::~HostArena() { munmap(base_, static_cast<size_t>(mapped_)); }

void HostArena::Read(const void* from, void* to, int64_t bytes) const {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void HostArena::Write(void* to, const void* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }

std::byte* Arena::At(int64_t offset, int64_t bytes) const {
  CHECK(offset >= 0 && bytes >= 0 && offset + bytes <= bytes_, "bytes [{}, {}) of an arena of {}", offset,
        offset + bytes, bytes_);
  return base_ + offset;
}

void Arena::Use(int64_t end) { high_water_ = std::max(high_water_, RoundUp(end, kLine)); }

}  // namespace espalier
