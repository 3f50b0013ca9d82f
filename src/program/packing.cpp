#include "packing.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "espalier/program/compile.hpp"
#include "espalier/util/alignment.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// How requests are placed. Each rule suits some programs.
struct Rule {
  int jobs = 0;                ///< requests that end at most so many jobs after their own are placed downward; -1: none
  int instructions = 0;        ///< or, if not 0, those that end at most so many instructions after their first
  bool smallest_hole = false;  ///< in the smallest hole that fits: downward, or upward if nothing is placed downward
  bool large_first = false;    ///< large requests have places from the start (PlaceLarge)
};
constexpr std::array kRules = {Rule{},
                               Rule{.smallest_hole = true},
                               Rule{.smallest_hole = true, .large_first = true},
                               Rule{.jobs = 1, .large_first = true},
                               Rule{.jobs = 8, .large_first = true},
                               Rule{.jobs = 1},
                               Rule{.jobs = -1, .smallest_hole = true},
                               Rule{.instructions = 100}};

struct Bytes {
  int64_t begin = 0, end = 0;
  int64_t Size() const { return end - begin; }
};

/// Free memory between a base and a limit, in order of addresses. There are dozens of holes, hundreds at most.
class Holes {
 public:
  Holes(int64_t base, int64_t limit) : holes_{{base, limit}} {}

  /// The lowest offset in the lowest hole, or in the smallest one, with room outside of `taken`, which is sorted and
  /// has no overlaps; -1: there is none.
  int64_t Lowest(int64_t bytes, std::span<const Bytes> taken, bool smallest_hole) {
    if (smallest_hole && taken.empty()) {
      const size_t h = Smallest(bytes, std::less<>());
      return h < holes_.size() ? Take(h, holes_[h].begin, bytes) : -1;
    }
    int64_t offset = -1, size = 0;
    size_t best = 0;
    for (size_t h = 0; h < holes_.size(); ++h) {
      const Bytes& hole = holes_[h];
      if (hole.Size() < bytes || (offset >= 0 && hole.Size() >= size)) continue;
      while (!taken.empty() && taken.front().end <= hole.begin) taken = taken.subspan(1);
      int64_t begin = hole.begin;
      for (const Bytes& other : taken) {
        if (other.begin >= begin + bytes || begin + bytes > hole.end) break;
        begin = other.end;
      }
      if (begin + bytes > hole.end) continue;
      offset = begin;
      size = hole.Size();
      best = h;
      if (!smallest_hole) break;
    }
    return offset < 0 ? -1 : Take(best, offset, bytes);
  }
  /// The highest offset in the highest hole, or in the smallest one, with room outside of `taken`; -1: there is none.
  int64_t Highest(int64_t bytes, std::span<const Bytes> taken, bool smallest_hole) {
    if (smallest_hole && taken.empty()) {
      const size_t h = Smallest(bytes, std::less_equal<>());
      return h < holes_.size() ? Take(h, holes_[h].end - bytes, bytes) : -1;
    }
    int64_t offset = -1, size = 0;
    size_t best = 0;
    for (size_t h = holes_.size(); h-- > 0;) {
      const Bytes& hole = holes_[h];
      if (hole.Size() < bytes || (offset >= 0 && hole.Size() >= size)) continue;
      while (!taken.empty() && taken.back().begin >= hole.end) taken = taken.first(taken.size() - 1);
      int64_t end = hole.end;
      for (auto other = taken.rbegin(); other != taken.rend(); ++other) {
        if (other->end <= end - bytes || end - bytes < hole.begin) break;
        end = other->begin;
      }
      if (end - bytes < hole.begin) continue;
      offset = end - bytes;
      size = hole.Size();
      best = h;
      if (!smallest_hole) break;
    }
    return offset < 0 ? -1 : Take(best, offset, bytes);
  }
  /// Takes bytes that are free.
  void TakeAt(int64_t offset, int64_t bytes) {
    const auto above = std::ranges::upper_bound(holes_, offset, {}, &Bytes::begin);
    CHECK(above != holes_.begin() && std::prev(above)->end >= offset + bytes, "the byte {} is not free", offset);
    Take(static_cast<size_t>(std::prev(above) - holes_.begin()), offset, bytes);
  }
  int64_t Largest() const {
    int64_t largest = 0;
    for (const Bytes& hole : holes_) largest = std::max(largest, hole.Size());
    return largest;
  }
  void Free(int64_t begin, int64_t end) {
    const auto above = std::ranges::lower_bound(holes_, begin, {}, &Bytes::begin);
    const bool joins_above = above != holes_.end() && above->begin == end;
    const bool joins_below = above != holes_.begin() && std::prev(above)->end == begin;
    if (joins_above && joins_below) {
      std::prev(above)->end = above->end;
      holes_.erase(above);
    } else if (joins_below) {
      std::prev(above)->end = end;
    } else if (joins_above) {
      above->begin = begin;
    } else {
      holes_.insert(above, {begin, end});
    }
  }

 private:
  /// The smallest hole with room, by `is_smaller` the first or the last of equal ones; the number of holes: there is
  /// none. It has no branches, which processors would guess wrong.
  size_t Smallest(int64_t bytes, auto is_smaller) const {
    size_t best = holes_.size();
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t h = 0; h < holes_.size(); ++h) {
      const int64_t size = holes_[h].Size();
      const bool better = (size >= bytes) & is_smaller(size, least);
      best = better ? h : best;
      least = better ? size : least;
    }
    return best;
  }
  int64_t Take(size_t h, int64_t offset, int64_t bytes) {
    const Bytes hole = holes_[h];
    const auto at = holes_.begin() + static_cast<ptrdiff_t>(h);
    const bool below = offset > hole.begin, above = offset + bytes < hole.end;
    if (below && above) holes_.insert(at + 1, {offset + bytes, hole.end});
    if (below)
      holes_[h].end = offset;
    else if (above)
      holes_[h].begin = offset + bytes;
    else
      holes_.erase(at);
    return offset;
  }
  std::vector<Bytes> holes_;
};

class Packer {
 public:
  Packer(const std::vector<MemoryRequest>& requests, const std::vector<int>& job_ends, int64_t base)
      : requests_(requests), base_(base) {
    packing_.offsets.resize(requests.size());
    packing_.peak = base_;
    if (requests.empty()) return;
    FindJobs(job_ends);
    SortByEnd();
    largest_sum_ = LargestSum();
    PlaceLarge();
  }

  Packing Run() {
    if (requests_.empty()) return std::move(packing_);
    for (const Rule& rule : kRules) attempts_.push_back({&rule, base_ + largest_sum_});
    while (true) {
      Attempt& attempt = *std::ranges::min_element(attempts_, {}, &Attempt::limit);
      const Failure failure = Place(*attempt.rule, attempt.limit);
      if (failure.placed == requests_.size()) return std::move(packing_);
      attempt.limit += std::max(Aligned(failure.lacks), StepAfter(attempt, failure));
    }
  }

 private:
  struct Attempt {
    const Rule* rule = nullptr;
    int64_t limit = 0;  // to try next
    int tries = 0;
  };
  /// The request that found no room.
  struct Failure {
    size_t placed = 0;  // requests before it; all: there is none
    int64_t lacks = 0;  // bytes that the largest hole lacks
  };

  /// By how much a limit is raised at least. The steps of a rule grow, and all grow after many passes over the
  /// requests. So the search ends: with the sum of all requests any rule has room.
  int64_t StepAfter(Attempt& attempt, const Failure& failure) {
    constexpr int64_t kStep = 400;  // part of the largest sum
    constexpr size_t kManyPasses = 20;
    placed_ += failure.placed;
    const int64_t after_many = 1 + static_cast<int64_t>(placed_ / (kManyPasses * requests_.size()));
    return Aligned(largest_sum_ / kStep * ++attempt.tries * after_many * after_many + 1);
  }

  void FindJobs(const std::vector<int>& job_ends) {
    const auto job_of = [&](int instruction) {
      return static_cast<int>(std::ranges::upper_bound(job_ends, instruction) - job_ends.begin());
    };
    jobs_after_.reserve(requests_.size());
    for (const MemoryRequest& request : requests_) jobs_after_.push_back(job_of(request.end) - job_of(request.begin));
  }
  void SortByEnd() {
    for (const MemoryRequest& request : requests_) end_ = std::max(end_, request.end);
    std::vector<int> place(static_cast<size_t>(end_) + 2, 0);  // by instruction: of the first request that ends with it
    for (const MemoryRequest& request : requests_) ++place[request.end + 1];
    std::partial_sum(place.begin(), place.end(), place.begin());
    by_end_.resize(requests_.size());
    for (size_t r = 0; r < requests_.size(); ++r) by_end_[place[requests_[r].end]++] = static_cast<int>(r);
  }
  /// The largest sum of requests that are needed at the same time.
  int64_t LargestSum() const {
    int64_t sum = 0, largest = 0;
    auto ended = by_end_.begin();
    for (const MemoryRequest& request : requests_) {
      for (; requests_[*ended].end < request.begin; ++ended) sum -= requests_[*ended].bytes;
      sum += request.bytes;
      CHECK(request.bytes > 0 && sum <= kMaxBytes, "{} bytes of memory", sum);
      largest = std::max(largest, sum);
    }
    return largest;
  }

  /// Whole steps and large requests: the former first, then the largest, each at the lowest offset above the base that
  /// no other has at the same time.
  void PlaceLarge() {
    constexpr int64_t kLarge = 32, kSmall = 1000;  // parts of the largest sum
    constexpr size_t kMany = 256;                  // the work grows with the square of their number
    const auto is_long = [&](int r) { return requests_[r].end - requests_[r].begin > end_ / 2; };
    for (size_t r = 0; r < requests_.size(); ++r) {
      const bool in_a_block = requests_[r].behind || (r + 1 < requests_.size() && requests_[r + 1].behind);
      const int64_t part = is_long(static_cast<int>(r)) ? kSmall : kLarge;
      if (!in_a_block && requests_[r].bytes > largest_sum_ / part) large_.push_back({static_cast<int>(r), 0});
    }
    std::ranges::stable_sort(
        large_, {}, [&](const Large& l) { return std::pair(!is_long(l.request), -requests_[l.request].bytes); });
    large_.resize(std::min(large_.size(), kMany));
    for (auto large = large_.begin(); large != large_.end(); ++large) {
      const MemoryRequest& request = requests_[large->request];
      std::vector<Bytes> taken;
      for (auto other = large_.begin(); other != large; ++other)
        if (const MemoryRequest& o = requests_[other->request]; o.begin <= request.end && request.begin <= o.end)
          taken.push_back({other->offset, other->offset + o.bytes});
      Join(taken);
      large->offset = Holes(base_, base_ + 2 * kMaxBytes).Lowest(request.bytes, taken, false);
      large_end_ = std::max(large_end_, large->offset + request.bytes);
    }
    std::ranges::sort(large_, {}, &Large::request);
  }

  /// Places requests below the limit. If all have room, `packing_` has them.
  Failure Place(const Rule& rule, int64_t limit) {
    if (rule.large_first && large_end_ > limit) return {0, large_end_ - limit};
    Holes holes(base_, limit);
    packing_.peak = base_;
    auto ended = by_end_.begin();
    size_t large = rule.large_first ? 0 : large_.size();
    for (size_t first = 0; first < requests_.size();) {
      for (; requests_[*ended].end < requests_[first].begin; ++ended)
        holes.Free(packing_.offsets[*ended], packing_.offsets[*ended] + requests_[*ended].bytes);
      int64_t offset = 0, bytes = requests_[first].bytes;
      size_t last = first + 1;
      if (large < large_.size() && large_[large].request == static_cast<int>(first)) {
        offset = large_[large].offset;
        holes.TakeAt(offset, bytes);
        ++large;
      } else {
        bool downward = IsPlacedDownward(rule, first);
        int end = requests_[first].end;
        for (; last < requests_.size() && requests_[last].behind; ++last) {
          bytes += requests_[last].bytes;
          end = std::max(end, requests_[last].end);
          downward = downward && IsPlacedDownward(rule, last);
        }
        const std::span<const Bytes> taken = Taken(large, end);
        offset = downward ? holes.Highest(bytes, taken, rule.smallest_hole) : holes.Lowest(bytes, taken, rule.jobs < 0);
        if (offset < 0) return {first, bytes - holes.Largest()};
      }
      packing_.peak = std::max(packing_.peak, offset + bytes);
      for (; first < last; ++first) {
        packing_.offsets[first] = offset;
        offset += requests_[first].bytes;
      }
    }
    return {requests_.size(), 0};
  }
  bool IsPlacedDownward(const Rule& rule, size_t request) const {
    const MemoryRequest& r = requests_[request];
    return rule.instructions > 0 ? r.end - r.begin <= rule.instructions : jobs_after_[request] <= rule.jobs;
  }
  struct Large {
    int request = 0;
    int64_t offset = 0;
  };
  /// The places of large requests, from number `first` on, that begin at the latest with instruction `end`. Requests in
  /// a row ask for the same few.
  std::span<const Bytes> Taken(size_t first, int end) {
    const auto last = std::upper_bound(large_.begin() + static_cast<ptrdiff_t>(first), large_.end(), end,
                                       [&](int e, const Large& l) { return e < requests_[l.request].begin; });
    const auto count = static_cast<size_t>(last - large_.begin()) - first;
    if (first != first_of_taken_)
      for (std::vector<Bytes>& known : taken_) known.clear();
    first_of_taken_ = first;
    taken_.resize(std::max(taken_.size(), count + 1));
    std::vector<Bytes>& taken = taken_[count];
    if (taken.empty() && count > 0) {
      for (size_t l = first; l < first + count; ++l)
        taken.push_back({large_[l].offset, large_[l].offset + requests_[large_[l].request].bytes});
      Join(taken);
    }
    return taken;
  }
  /// In order of addresses, without overlaps.
  static void Join(std::vector<Bytes>& places) {
    std::ranges::sort(places, {}, &Bytes::begin);
    size_t last = 0;
    for (const Bytes& place : places)
      if (place.begin <= places[last].end)
        places[last].end = std::max(places[last].end, place.end);
      else
        places[++last] = place;
    if (!places.empty()) places.resize(last + 1);
  }

  const std::vector<MemoryRequest>& requests_;
  const int64_t base_;
  int end_ = 0;                  // the last instruction that needs a request
  std::vector<int> by_end_;      // requests in order of their ends
  std::vector<int> jobs_after_;  // by request: how many jobs after its first it ends
  int64_t largest_sum_ = 0, large_end_ = 0;
  std::vector<Attempt> attempts_;          // by rule
  size_t placed_ = 0;                      // requests, in all attempts
  std::vector<Large> large_;               // in order of requests
  std::vector<std::vector<Bytes>> taken_;  // by how many large requests from `first_of_taken_` on have it
  size_t first_of_taken_ = 0;
  Packing packing_;
};

}  // namespace

Packing Pack(const std::vector<MemoryRequest>& requests, const std::vector<int>& job_ends, int64_t base) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t r) { return requests[r].begin; });
  std::vector<MemoryRequest> sorted;
  sorted.reserve(requests.size());
  for (size_t r : order) sorted.push_back(requests[r]);
  const Packing packed = Packer(sorted, job_ends, base).Run();
  Packing packing{std::vector<int64_t>(requests.size()), packed.peak};
  for (size_t k = 0; k < order.size(); ++k) packing.offsets[order[k]] = packed.offsets[k];
  return packing;
}

}  // namespace espalier
