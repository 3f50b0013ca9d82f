#include "tune/choose.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace espalier {
namespace {

Layout FamilyOf(Layout layout) {
  layout.dp_shard = layout.DataParallel();
  layout.dp_replicate = 1;
  layout.context = ContextMode::kRing;
  layout.zero = 3;
  layout.reduce = ReduceFrequency::kStep;
  layout.regather = Regather::kAuto;
  layout.prefetch = 0;
  return layout;
}

/// Number of the fastest layouts that are within kHopeful of the first.
size_t CountHopeful(const std::vector<Scored>& scored) {
  const auto end = std::ranges::find_if(scored, [&](const Scored& s) { return s.us > kHopeful * scored.front().us; });
  return static_cast<size_t>(end - scored.begin());
}

std::vector<size_t> FewOfAFamily(const std::vector<Scored>& scored, size_t hopeful) {
  std::map<Layout, int> siblings;
  std::vector<size_t> order;
  for (size_t i = 0; i < hopeful; ++i)
    if (siblings[FamilyOf(scored[i].layout)]++ < kSiblings) order.push_back(i);
  return order;
}

std::vector<size_t> Conventional(const std::vector<Scored>& scored, const std::vector<size_t>& fastest) {
  std::vector<size_t> order;
  for (size_t i : fastest)
    if (IsConventional(scored[i].layout) && order.size() < kConventional) order.push_back(i);
  return order;
}

/// The first of each schedule, and of each pair of tp and pp.
std::vector<size_t> Different(const std::vector<Scored>& scored, size_t hopeful) {
  std::set<ScheduleKind> schedules;
  std::set<std::pair<int, int>> degrees;
  std::vector<size_t> order;
  for (size_t i = 0; i < hopeful; ++i) {
    const Layout& l = scored[i].layout;
    const bool schedule = schedules.insert(l.schedule).second, pair = degrees.emplace(l.tp, l.pp).second;
    if (schedule || pair) order.push_back(i);
  }
  return order;
}

/// Takes layouts in turn until the instructions are used up.
class Chooser {
 public:
  explicit Chooser(const std::vector<int64_t>& instructions) : instructions_(instructions) {}

  /// Up to `until` layouts with up to `instructions` in total, including layouts taken before.
  void Take(const std::vector<size_t>& from, size_t until, int64_t instructions) {
    for (size_t i : from) {
      if (chosen_.size() >= until) return;
      if (taken_.contains(i) || (used_ + instructions_[i] > instructions && !chosen_.empty())) continue;
      taken_.insert(i);
      chosen_.push_back(i);
      used_ += instructions_[i];
    }
  }
  std::vector<size_t> Chosen() && { return std::move(chosen_); }

 private:
  const std::vector<int64_t>& instructions_;
  int64_t used_ = 0;
  std::set<size_t> taken_;
  std::vector<size_t> chosen_;
};

}  // namespace

std::vector<size_t> Choose(const std::vector<Scored>& scored, const std::vector<int64_t>& instructions,
                           const ChooseOptions& options) {
  if (scored.empty()) return {};
  const size_t hopeful = CountHopeful(scored);
  const std::vector<size_t> fastest = FewOfAFamily(scored, hopeful);
  Chooser chooser(instructions);
  chooser.Take(fastest, (options.count + 1) / 2, options.instructions / 2);
  chooser.Take(Conventional(scored, fastest), options.count, options.instructions);
  chooser.Take(Different(scored, hopeful), options.count, options.instructions);
  chooser.Take(fastest, options.count, options.instructions);
  return std::move(chooser).Chosen();
}

}  // namespace espalier
