// The number of threads, and each thread's scratch memory.
#include <omp.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "espalier/kernels/kernel_table.hpp"
#include "parallel.hpp"
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

std::byte* Scratch(int64_t bytes) {
  thread_local std::unique_ptr<std::byte, Free> memory;
  thread_local int64_t held = 0;
  if (bytes > held) {
    constexpr int64_t kPage = 4096;
    held = (bytes + kPage - 1) / kPage * kPage;
    memory.reset();
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(held))));
    if (memory == nullptr) throw std::bad_alloc();
  }
  return memory.get();
}

}  // namespace cpu

void SetCpuThreads(int threads) {
  CHECK(threads >= 1, "{} threads", threads);
  cpu::ThreadCount() = threads;
  omp_set_num_threads(threads);
}

}  // namespace espalier
