// The number of threads, and each thread's scratch memory.
#include "threads.hpp"

#include <omp.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/util/error.hpp"
#include "scratch.hpp"

namespace espalier {
namespace cpu {
namespace {

int& ThreadCount() {
  static int threads = omp_get_max_threads();
  return threads;
}

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};

}  // namespace

int Threads() { return ThreadCount(); }

std::byte* Scratch(int64_t bytes, ScratchUse use) {
  constexpr int64_t kPage = 4096;
  struct Memory {
    std::unique_ptr<std::byte, Free> data;
    int64_t bytes = 0;
  };
  thread_local Memory memories[kScratchUses];
  Memory& memory = memories[static_cast<size_t>(use)];
  if (bytes > memory.bytes) {
    memory.bytes = (bytes + kPage - 1) / kPage * kPage;
    memory.data.reset();
    memory.data.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(memory.bytes))));
    if (memory.data == nullptr) throw std::bad_alloc();
  }
  return memory.data.get();
}

}  // namespace cpu

void SetCpuThreads(int threads) {
  CHECK(threads >= 1, "{} threads", threads);
  cpu::ThreadCount() = threads;
  omp_set_num_threads(threads);
}

}  // namespace espalier
