#include "checkpoint/transfer/destination.hpp"

#include <algorithm>
#include <cstring>

namespace espalier {
namespace {

constexpr int64_t kWindowBytes = int64_t{4} << 20;

}  // namespace

void Destination::Put(int64_t to, const char* from, int64_t bytes) {
  if (tensor_.OnHost()) {
    std::memcpy(Place(to), from, static_cast<size_t>(bytes));
    return;
  }
  // A window includes the gaps, so strided runs fill it sooner.
  if (!runs_.empty() && to + bytes - runs_.front().to > kWindowBytes) Flush();
  runs_.push_back({to, bytes, held_.size()});
  held_.insert(held_.end(), from, from + bytes);
}

void Destination::Flush() {
  if (runs_.empty()) return;
  const int64_t begin = runs_.front().to, bytes = runs_.back().to + runs_.back().bytes - begin;
  const char* whole = held_.data();
  if (std::ssize(held_) < bytes) {
    window_.resize(static_cast<size_t>(bytes));
    tensor_.arena->Read(Place(begin), window_.data(), bytes);
    for (const Run& run : runs_)
      std::memcpy(window_.data() + (run.to - begin), held_.data() + run.at, static_cast<size_t>(run.bytes));
    whole = window_.data();
  }
  tensor_.arena->Write(Place(begin), whole, bytes);
  runs_.clear();
  held_.clear();
}

}  // namespace espalier
