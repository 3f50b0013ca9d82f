#include "supervise/metrics_tail.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "espalier/history/run_history.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/json.hpp"

namespace espalier {
namespace {

constexpr int64_t kBlock = 1 << 16;

/// A file that is missing or cannot be read has no bytes.
int64_t SizeOf(const std::string& path) {
  try {
    return InputFile(path).bytes();
  } catch (const UserError&) {
    return 0;
  }
}

}  // namespace

MetricsTail::MetricsTail(const std::string& run_dir) : path_(MetricsFile(run_dir)), offset_(SizeOf(path_)) {}

bool MetricsTail::Read() {
  std::string fresh;
  try {
    const InputFile file(path_);
    // A start removes the torn last line of a killed one.
    if (file.bytes() < offset_) offset_ = file.bytes(), block_.clear();
    std::string block(static_cast<size_t>(kBlock), '\0');
    while (const int64_t n = file.ReadSome(offset_, block.data(), kBlock)) {
      fresh.append(block, 0, static_cast<size_t>(n));
      offset_ += n;
    }
  } catch (const UserError&) {
    return false;
  }
  block_ += fresh;
  size_t begin = 0;
  for (size_t end; (end = block_.find('\n', begin)) != block_.npos; begin = end + 1)
    Take(block_.substr(begin, end - begin));
  block_.erase(0, begin);
  return begin > 0;
}

void MetricsTail::Take(const std::string& line) try {
  const nlohmann::json fields = ParseJson(line, {});
  const std::string event = TextOf(fields, "event");
  if (event == "start") first_ = IntegerOf(fields, "first_step");
  if (event == "corruption" && fields.contains("ranks")) corrupt_ = fields["ranks"].get<std::vector<int>>();
  if (event == "straggler" || event == "slow_link") slow_.push_back(fields);
  if (!event.empty() || !fields.contains("loss")) return;
  const std::optional<int64_t> step = IntegerOf(fields, "step");
  if (!step) return;
  last_time_ = NumberOf(fields, "time");
  if (!last_) first_time_ = last_time_;
  last_ = step;
} catch (const std::exception&) {
  // A torn or foreign line says nothing.
}

}  // namespace espalier
