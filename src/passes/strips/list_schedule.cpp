#include "list_schedule.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "espalier/util/enum_array.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// A message waits for one of a lower strip that can start within this share of its time; a task fills a gap of at
/// least this share of its own.
constexpr double kPatience = 0.3;

class Scheduler {
 public:
  explicit Scheduler(const std::vector<StripTask>& tasks)
      : tasks_(tasks), readers_(tasks.size()), missing_(tasks.size()), fed_(tasks.size()), end_(tasks.size(), kNever) {
    for (size_t t = tasks.size(); t-- > 0;) {
      const double fed = tasks[t].lane == StripTask::Lane::kMessage ? tasks[t].time : FeedsSoon(t) ? fed_[t] : 0;
      for (int earlier : tasks[t].after) {
        CHECK(earlier >= 0 && static_cast<size_t>(earlier) < t, "task {} comes after task {}", t, earlier);
        fed_[earlier] = std::max(fed_[earlier], fed);
        readers_[earlier].push_back(static_cast<int>(t));
      }
      missing_[t] = tasks[t].after.size();
      if (missing_[t] == 0) open_[tasks[t].lane].insert(static_cast<int>(t));
    }
  }

  std::vector<int> Run() {
    while (order_.size() < tasks_.size()) {
      if (const int free = Free(); free >= 0) {
        Issue(free, Ready(free));
        continue;
      }
      const int message = FirstMessage();
      const double message_start = message < 0 ? kNever : Start(message);
      const int kernel = BestKernel();
      if (kernel >= 0 && (message < 0 || Start(kernel) <= message_start + kPatience * tasks_[message].time))
        Issue(kernel, Start(kernel));
      else
        Issue(message, message_start);
    }
    return MessagesEarly();
  }

 private:
  /// A message needs the task, which is short beside it.
  bool FeedsSoon(size_t t) const { return tasks_[t].time < kPatience * fed_[t]; }
  double Ready(int t) const {
    double ready = 0;
    for (int earlier : tasks_[t].after) ready = std::max(ready, end_[earlier]);
    return ready;
  }
  double& LaneEnd(int t) { return tasks_[t].lane == StripTask::Lane::kMessage ? message_end_ : compute_end_; }
  double Start(int t) { return std::max(Ready(t), LaneEnd(t)); }

  void Issue(int t, double start) {
    CHECK(t >= 0, "no task can be issued");
    end_[t] = start + tasks_[t].time;
    if (tasks_[t].lane != StripTask::Lane::kNone) LaneEnd(t) = end_[t];
    order_.push_back(t);
    open_[tasks_[t].lane].erase(t);
    for (int later : readers_[t])
      if (--missing_[later] == 0) open_[tasks_[later].lane].insert(later);
  }

  /// A task that takes no time; -1: none.
  int Free() const {
    const std::set<int>& open = open_[StripTask::Lane::kNone];
    return open.empty() ? -1 : *open.begin();
  }

  /// Of the messages that can start soon, that of the lowest strip; one that fills gaps only if it delays no other.
  int FirstMessage() {
    const std::set<int>& open = open_[StripTask::Lane::kMessage];
    double soonest = kNever;
    for (int t : open) soonest = std::min(soonest, Start(t) + kPatience * tasks_[t].time);
    int best = -1;
    const auto key = [&](int t) { return std::tuple(tasks_[t].fills_gaps, tasks_[t].strip, Start(t)); };
    for (int t : open)
      if (Start(t) <= soonest && (best < 0 || key(t) < key(best))) best = t;
    return best;
  }

  int BestKernel() {
    int best = -1, filler = -1;
    const auto key = [&](int t) {
      return std::tuple(Start(t), !FeedsSoon(static_cast<size_t>(t)), tasks_[t].stage, tasks_[t].strip, t);
    };
    for (int t : open_[StripTask::Lane::kCompute]) {
      int& first = tasks_[t].fills_gaps ? filler : best;
      if (first < 0 || key(t) < key(first)) first = t;
    }
    if (filler < 0) return best;
    if (best < 0) return Start(filler) <= compute_end_ || open_[StripTask::Lane::kMessage].empty() ? filler : -1;
    const double gap = Start(best) - std::max(compute_end_, Start(filler));
    return gap > kPatience * tasks_[filler].time ? filler : best;
  }

  /// Each message directly after the last of what it needs and of the messages before it: memory that is free then is
  /// not that of a later kernel.
  std::vector<int> MessagesEarly() const {
    std::vector<int> messages, order;
    for (int t : order_)
      if (tasks_[t].lane == StripTask::Lane::kMessage) messages.push_back(t);
    std::vector<bool> issued(tasks_.size());
    auto next = messages.begin();
    const auto issue = [&](int t) {
      order.push_back(t);
      issued[t] = true;
    };
    const auto issue_messages = [&] {
      while (next != messages.end() &&
             std::ranges::all_of(tasks_[*next].after, [&](int earlier) { return issued[earlier]; }))
        issue(*next++);
    };
    issue_messages();
    for (int t : order_) {
      if (tasks_[t].lane == StripTask::Lane::kMessage) continue;
      issue(t);
      issue_messages();
    }
    return order;
  }

  const std::vector<StripTask>& tasks_;
  std::vector<std::vector<int>> readers_;              // by task: those that come after it
  std::vector<size_t> missing_;                        // by task: those before it that are not issued
  EnumArray<StripTask::Lane, std::set<int>, 3> open_;  // by lane: what may be issued next, few tasks at a time
  std::vector<double> fed_;  // time of a message that needs the task, or short tasks after it; 0: none
  std::vector<double> end_;  // kNever: not issued
  double compute_end_ = 0, message_end_ = 0;
  std::vector<int> order_;
};

}  // namespace

std::vector<int> ListSchedule(const std::vector<StripTask>& tasks) { return Scheduler(tasks).Run(); }

}  // namespace espalier
