#include "espalier/ops/list_schedule.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The lanes, and which tasks are open.
class ListScheduler {
 public:
  /// Messages take `slowdown` times as long as their tasks say.
  explicit ListScheduler(const std::vector<LaneTask>& tasks, double slowdown = 1)
      : tasks_(tasks), slowdown_(slowdown), missing_(tasks.size()), later_(tasks.size()), end_(tasks.size(), kNever) {
    for (int t = 0; t < Size(); ++t) {
      if (At(t).lane >= std::ssize(lane_ends_)) lane_ends_.resize(At(t).lane + 1);
      for (const std::vector<int>* earlier : {&At(t).needs, &At(t).after})
        for (int e : *earlier) {
          CHECK(e >= 0 && e < t, "task {} comes after task {}", t, e);
          later_[e].push_back(t);
          ++missing_[t];
        }
      if (missing_[t] == 0) open_.insert(t);
    }
  }

  int Size() const { return static_cast<int>(tasks_.size()); }
  bool Done() const { return order_.size() == tasks_.size(); }
  const std::vector<int>& Order() const { return order_; }
  const LaneTask& At(int t) const { return tasks_[t]; }
  bool IsMessage(int t) const { return At(t).lane > kComputeLane; }

  const std::set<int>& Open() const { return open_; }
  bool IsIssued(int t) const { return end_[t] < kNever; }
  double End(int t) const { return end_[t]; }
  double LaneEnd(int lane) const { return lane == kNoLane ? 0 : lane_ends_[lane]; }
  double End() const { return std::ranges::max(lane_ends_); }
  /// When all that an open task needs has ended.
  double Ready(int t) const {
    double ready = 0;
    for (int e : At(t).needs) ready = std::max(ready, end_[e]);
    return ready;
  }
  /// When its lane can start an open task.
  double Start(int t) const { return std::max(Ready(t), LaneEnd(At(t).lane)); }

  void Issue(int t, double earliest = 0) {
    CHECK(open_.contains(t), "task {} is not open", t);
    end_[t] = std::max(Start(t), earliest) + (IsMessage(t) ? slowdown_ : 1) * At(t).time;
    if (At(t).lane != kNoLane) lane_ends_[At(t).lane] = end_[t];
    order_.push_back(t);
    open_.erase(t);
    for (int later : later_[t])
      if (--missing_[later] == 0) open_.insert(later);
  }

 private:
  const std::vector<LaneTask>& tasks_;
  const double slowdown_;
  std::vector<int> missing_;             // by task: how many before it are not issued
  std::vector<std::vector<int>> later_;  // by task: those after it
  std::set<int> open_;                   // a few at a time
  std::vector<double> end_;              // by task; kNever: not issued
  std::vector<double> lane_ends_{0};
  std::vector<int> order_;
};

// --- strips

/// A message waits for one of a lower strip that can start within this share of its time; a task fills a gap of at
/// least this share of its own.
constexpr double kStripPatience = 0.3;

class StripScheduler : ListScheduler {
 public:
  explicit StripScheduler(const std::vector<LaneTask>& tasks) : ListScheduler(tasks), fed_(tasks.size()) {
    for (int t = Size(); t-- > 0;) {
      const double fed = IsMessage(t) ? At(t).time : FeedsSoon(t) ? fed_[t] : 0;
      for (int earlier : At(t).needs) fed_[earlier] = std::max(fed_[earlier], fed);
    }
  }

  std::vector<int> Run() {
    while (!Done()) Issue(Next());
    return MessagesEarly();
  }

 private:
  /// A message needs the task, which is short beside it.
  bool FeedsSoon(int t) const { return At(t).time < kStripPatience * fed_[t]; }

  int Next() const {
    const auto free = std::ranges::find(Open(), kNoLane, [&](int t) { return At(t).lane; });
    if (free != Open().end()) return *free;
    const int message = FirstMessage(), kernel = BestKernel(message >= 0);
    if (message < 0 || kernel < 0) return std::max(message, kernel);
    return Start(kernel) <= Start(message) + kStripPatience * At(message).time ? kernel : message;
  }

  /// Among messages that can start soon, the lowest strip; one that fills gaps only if it delays no other. -1: none.
  int FirstMessage() const {
    double soonest = kNever;
    for (int t : Open())
      if (IsMessage(t)) soonest = std::min(soonest, Start(t) + kStripPatience * At(t).time);
    int best = -1;
    const auto key = [&](int t) { return std::tuple(At(t).fills_gaps, At(t).strip, Start(t)); };
    for (int t : Open())
      if (IsMessage(t) && Start(t) <= soonest && (best < 0 || key(t) < key(best))) best = t;
    return best;
  }

  /// -1: none is open, or a message should go first.
  int BestKernel(bool has_message) const {
    int best = -1, filler = -1;
    const auto key = [&](int t) { return std::tuple(Start(t), !FeedsSoon(t), At(t).stage, At(t).strip); };
    for (int t : Open()) {
      if (IsMessage(t)) continue;
      int& first = At(t).fills_gaps ? filler : best;
      if (first < 0 || key(t) < key(first)) first = t;
    }
    if (filler < 0) return best;
    if (best < 0) return Start(filler) <= LaneEnd(kComputeLane) || !has_message ? filler : -1;
    const double gap = Start(best) - Start(filler);
    return gap > kStripPatience * At(filler).time ? filler : best;
  }

  /// Each message directly after the last of what it needs and of the messages before it: memory that is free then is
  /// not that of a later kernel.
  std::vector<int> MessagesEarly() const {
    std::vector<int> messages, order;
    for (int t : Order())
      if (IsMessage(t)) messages.push_back(t);
    std::vector<bool> placed(Order().size());
    auto next = messages.begin();
    const auto place = [&](int t) {
      order.push_back(t);
      placed[t] = true;
    };
    const auto place_messages = [&] {
      while (next != messages.end() && std::ranges::all_of(At(*next).needs, [&](int e) { return placed[e]; }))
        place(*next++);
    };
    place_messages();
    for (int t : Order()) {
      if (IsMessage(t)) continue;
      place(t);
      place_messages();
    }
    return order;
  }

  std::vector<double> fed_;  // by task: time of a message that needs it, or short tasks after it; 0: none
};

// --- messages

/// Other messages may use the same links, so that one takes so many times as long; tasks are ordered for that.
constexpr double kMessagePatience = 4;

/// A message waits for the kernels issued before it, whose memory it may get.
struct ReusedMemory : ListScheduler {
  using ListScheduler::ListScheduler;
  void Issue(int t) { ListScheduler::Issue(t, IsMessage(t) ? LaneEnd(kComputeLane) : 0); }
};

class MessageScheduler : ReusedMemory {
 public:
  explicit MessageScheduler(const std::vector<LaneTask>& tasks)
      : ReusedMemory(tasks, kMessagePatience), exposed_(tasks.size()), after_message_(tasks.size()) {
    ReusedMemory as_given(tasks, kMessagePatience);
    for (int t = 0; t < Size(); ++t) {
      for (int e : At(t).needs) {
        if (IsMessage(e) || after_message_[e]) after_message_[t] = true;
        if (!IsMessage(t)) NoteIfExposed(e, as_given);
      }
      as_given.Issue(t);
    }
    for (int t = 0; t < Size(); ++t) NoteIfExposed(t, as_given);
  }

  std::vector<int> Run() {
    for (int t = 0; t < Size(); ++t)
      if (exposed_[t] && !after_message_[t]) IssueWithNeeds(t);
    while (!Done()) {
      IssueOpen([&](int t) { return exposed_[t]; });
      IssueOpen([&](int t) { return At(t).fills_gaps; });
      if (const int next = Next(); next >= 0) Issue(next);
    }
    return Order();
  }

 private:
  void NoteIfExposed(int t, const ListScheduler& now) {
    if (IsMessage(t) && now.End(t) > now.LaneEnd(kComputeLane)) exposed_[t] = true;
  }
  void IssueWithNeeds(int t) {
    if (IsIssued(t)) return;
    std::vector<int> needs = At(t).needs;
    std::ranges::sort(needs);
    for (int e : needs) IssueWithNeeds(e);
    if (!IsMessage(t)) IssueOpen([&](int open) { return At(open).fills_gaps; });
    if (!IsIssued(t)) Issue(t);
  }
  template <typename F>
  void IssueOpen(const F& wanted) {
    for (int t = 0; t < Size(); ++t)
      if (Open().contains(t) && wanted(t)) Issue(t);
  }
  /// The first open task that waits for no message; else the one whose message arrives first. -1: none.
  int Next() const {
    int next = -1;
    double soonest = kNever;
    for (int t : Open()) {
      const double start = std::max(LaneEnd(kComputeLane), Ready(t));
      if (At(t).fills_gaps || start >= soonest) continue;
      next = t;
      soonest = start;
    }
    return next;
  }

  std::vector<bool> exposed_;        // a message that others wait for in the order given, or that ends last there
  std::vector<bool> after_message_;  // the task needs a message, perhaps indirectly
};

/// The next task is the one that can start first; of those that can start at once, the one whose `rank` is least.
std::vector<int> Merge(const std::vector<LaneTask>& tasks, double LaneTask::*rank) {
  ListScheduler lanes(tasks);
  while (!lanes.Done())
    lanes.Issue(*std::ranges::min_element(lanes.Open(), {},
                                          [&](int t) { return std::pair(lanes.Start(t), lanes.At(t).*rank); }));
  return lanes.Order();
}

}  // namespace

std::vector<int> ScheduleLists(const std::vector<LaneTask>& tasks) { return Merge(tasks, &LaneTask::until_message); }

std::vector<int> ScheduleEvenly(const std::vector<LaneTask>& tasks) { return Merge(tasks, &LaneTask::share_before); }

std::vector<int> ScheduleStrips(const std::vector<LaneTask>& tasks) { return StripScheduler(tasks).Run(); }

std::vector<int> ScheduleMessages(const std::vector<LaneTask>& tasks) { return MessageScheduler(tasks).Run(); }

double TimeOf(const std::vector<LaneTask>& tasks, const std::vector<int>& order) {
  ReusedMemory lanes(tasks);
  for (int t : order) lanes.Issue(t);
  return lanes.End();
}

TimedOrder Shortest(const std::vector<LaneTask>& tasks, std::vector<std::vector<int>> orders) {
  TimedOrder best;
  for (std::vector<int>& order : orders)
    if (const double time = TimeOf(tasks, order); best.order.empty() || time < best.time)
      best = {time, std::move(order)};
  return best;
}

}  // namespace espalier
