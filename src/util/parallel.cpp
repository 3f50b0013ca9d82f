#include "espalier/util/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace espalier {

void ParallelFor(size_t count, const std::function<void(size_t)>& body, int threads) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i; (i = next++) < count;) try {
        body(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  };
  const size_t processors = std::max(1u, std::thread::hardware_concurrency());
  const size_t wanted = threads > 0 ? static_cast<size_t>(threads) : processors;
  std::vector<std::jthread> others;
  try {
    while (others.size() + 1 < std::min(wanted, count)) others.emplace_back(work);
  } catch (const std::system_error&) {
    // Fewer threads than wanted: the system allows no more.
  }
  work();
  others.clear();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace espalier
