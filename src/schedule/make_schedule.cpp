#include <algorithm>
#include <array>

#include "schedule/jobs.hpp"

namespace espalier {
namespace {

enum class Layout : uint8_t { kLooped, kV };
enum class Backward : uint8_t { kWoven, kApart };

/// What a schedule asks of the numbers, and how it is made.
struct Entry {
  std::string_view name;  // in the deck
  Layout layout;
  Backward backward;
  int least_chunks, most_chunks;     // per stage
  int least_microbatches_per_stage;  // 0: any number will do
  Schedule (*make)(int stages, int chunks_per_stage, int microbatches);
};

constexpr int kMostChunks = 1024;

template <Schedule (*kMake)(int, int)>
Schedule Make(int stages, int, int microbatches) {
  return kMake(stages, microbatches);
}

constexpr std::array kSchedules = {
    Entry{"1f1b", Layout::kLooped, Backward::kWoven, 1, 1, 0, Make<OneFOneB>},
    Entry{"gpipe", Layout::kLooped, Backward::kWoven, 1, 1, 0, Make<GPipe>},
    Entry{"interleaved", Layout::kLooped, Backward::kWoven, 2, kMostChunks, 1, Interleaved},
    Entry{"zb-h1", Layout::kLooped, Backward::kApart, 1, 1, 0, Make<ZeroBubbleH1>},
    Entry{"zbv", Layout::kV, Backward::kApart, 2, 2, 0, Make<ZeroBubbleV>},
    Entry{"dualpipev", Layout::kV, Backward::kWoven, 2, 2, 2, Make<DualPipeV>},
};

const Entry* Find(std::string_view name) {
  const auto found = std::find_if(kSchedules.begin(), kSchedules.end(), [&](const Entry& e) { return e.name == name; });
  return found == kSchedules.end() ? nullptr : &*found;
}

const Entry& Get(std::string_view name) {
  const Entry* entry = Find(name);
  CHECK(entry != nullptr, "there is no schedule \"{}\"", name);
  return *entry;
}

}  // namespace

int DefaultChunks(std::string_view name) {
  const Entry* entry = Find(name);
  return entry == nullptr ? 1 : entry->least_chunks;
}

bool PutsWOff(std::string_view name) {
  const Entry* entry = Find(name);
  return entry != nullptr && entry->backward == Backward::kApart;
}

std::string WhyNotChunks(std::string_view name, int64_t chunks) {
  const Entry* entry = Find(name);
  if (entry == nullptr || (chunks >= entry->least_chunks && chunks <= entry->most_chunks)) return "";
  return fmt::format("must be {}{} for pipeline.schedule = \"{}\"",
                     entry->most_chunks > entry->least_chunks ? "at least " : "", entry->least_chunks, name);
}

int64_t LeastMicrobatches(std::string_view name, int64_t stages) {
  const Entry* entry = Find(name);
  return entry == nullptr ? 1 : std::max<int64_t>(1, entry->least_microbatches_per_stage * stages);
}

std::vector<int> PlaceChunks(std::string_view name, int stages, int chunks_per_stage) {
  return Get(name).layout == Layout::kV ? VShaped(stages) : Looped(stages, chunks_per_stage);
}

Schedule MakeSchedule(std::string_view name, int stages, int chunks_per_stage, int microbatches) {
  const Entry& entry = Get(name);
  const std::string why = WhyNotChunks(name, chunks_per_stage);
  CHECK(why.empty(), "pipeline.chunks = {}: {}", chunks_per_stage, why);
  CHECK(microbatches >= LeastMicrobatches(name, stages), "{} on {} stages with {} microbatches", name, stages,
        microbatches);
  return entry.make(stages, chunks_per_stage, microbatches);
}

}  // namespace espalier
