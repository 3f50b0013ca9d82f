#include "supervise/host_pool.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace espalier {

const HostPool::State& HostPool::Of(const std::string& name) const {
  static const State kNew;
  const auto known = states_.find(name);
  return known == states_.end() ? kNew : known->second;
}

void HostPool::Failed(const std::vector<std::string>& blamed) {
  ++count_;
  for (const std::string& name : blamed) {
    State& state = states_[name];
    ++state.failures;
    state.last = count_;
  }
}

int HostPool::Failures(const std::string& name) const { return Of(name).failures; }
bool HostPool::Answers(const std::string& name) const { return Of(name).answers; }

bool HostPool::Usable(const std::string& name) const {
  const State& state = Of(name);
  return state.answers && !state.excluded && state.failures < most_;
}

size_t HostPool::UsableCount() const {
  return static_cast<size_t>(std::ranges::count_if(names_, [&](const std::string& name) { return Usable(name); }));
}

std::vector<std::string> HostPool::Choose(const std::vector<std::string>& before, size_t count) const {
  const auto is_before = [&](const std::string& name) { return std::ranges::find(before, name) != before.end(); };
  std::vector<std::string> order;
  for (const std::string& name : names_)
    if (Usable(name)) order.push_back(name);
  const auto rank = [&](const std::string& name) {
    const State& state = Of(name);
    const bool stays = is_before(name) && (state.last == 0 || state.last < count_);
    return std::tuple(!stays, state.last);
  };
  std::ranges::stable_sort(order, {}, rank);
  order.resize(std::min(order.size(), count));
  // Hosts that stay keep their places; the others fill the gaps in order.
  std::vector<std::string> chosen(order.size()), others;
  for (const std::string& name : order) {
    const auto place = static_cast<size_t>(std::ranges::find(before, name) - before.begin());
    if (place < before.size() && place < chosen.size())
      chosen[place] = name;
    else
      others.push_back(name);
  }
  auto next = others.begin();
  for (std::string& name : chosen)
    if (name.empty()) name = *next++;
  return chosen;
}

}  // namespace espalier
