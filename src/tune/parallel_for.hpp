// The same work for every index, on some threads. What a thread computes depends on the index alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace espalier {

/// Calls work(i) for every i < count. Rethrows the exception of the smallest index, after all threads have ended.
template <typename Work>
void ParallelFor(size_t count, int threads, const Work& work) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> failures(count);
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(run);
  run();
  for (std::thread& thread : others) thread.join();
  const auto first = std::ranges::find_if(failures, [](const auto& failure) { return failure != nullptr; });
  if (first != failures.end()) std::rethrow_exception(*first);
}

}  // namespace espalier
