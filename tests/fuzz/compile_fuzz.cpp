// Compiles random decks: each line of the input is one key=value over a good deck, and "ranks=N" gives the number of
// ranks. The values are refused with messages, or the programs of all ranks are compiled, placed in memory and checked.
// Valid decks that take more than a second (thousands of layers, ranks or microbatches) are left to
// tests/restart/attack_sizes.py.
#include <algorithm>
#include <charconv>
#include <sstream>
#include <vector>

#include "espalier/deck/parse.hpp"
#include "espalier/program/plan.hpp"
#include "fuzz.hpp"
#include "test_decks.hpp"

namespace espalier::fuzz {
namespace {

constexpr int64_t kMaxWork = 256, kMaxRanks = 64, kMaxHeap = int64_t{1} << 28;

struct Input {
  std::vector<std::string> overrides;
  int ranks = 0;  ///< 0: the fewest that the degrees allow
};

Input ReadInput(const std::string& text) {
  constexpr std::string_view kRanks = "ranks=";
  Input input;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(kRanks))
      std::from_chars(line.data() + kRanks.size(), line.data() + line.size(), input.ranks);
    else
      input.overrides.push_back(line);
  return input;
}

/// Microbatches times layers over the whole world, times the hops of a ring: small enough to compile thousands of
/// times.
bool IsSmall(const Deck& deck, const Mesh& mesh) {
  const double work = double(deck.model.layers) * double(BatchOf(deck, mesh).microbatches) * double(deck.parallel.cp);
  return mesh.Ranks() <= kMaxRanks && work <= kMaxWork && deck.model.layers * mesh.Degree(Axis::kPp) <= kMaxWork &&
         work * mesh.Ranks() <= 4 * kMaxWork;
}

int64_t ArenaBytesOf(const Program& program, const Operand& operand) {
  return program.SpaceOf(operand) == Space::kHost ? program.host_bytes : program.arena_bytes;
}

/// Checks that every buffer of a rank is in its arena, and that the arena is no larger than the relations promise.
void RequirePlaced(const Program& program) {
  const auto placed = [&](const Operand& operand) {
    return operand.bytes >= 0 && operand.offset >= 0 &&
           operand.offset <= ArenaBytesOf(program, operand) - operand.bytes;
  };
  Require(program.arena_bytes >= 0 && program.arena_bytes <= int64_t{1} << 58,
          "an arena of " + std::to_string(program.arena_bytes) + " bytes");
  for (const PersistentBuffer& buffer : program.persistent) Require(placed(buffer.place), "a buffer outside the arena");
  for (const Instruction& i : program.instructions) {
    Require(std::ranges::all_of(i.inputs, placed) && std::ranges::all_of(i.outputs, placed) && placed(i.workspace),
            "an operand outside the arena");
  }
}

void TryCompile(const std::string& text) {
  const Input input = ReadInput(text);
  Within(kMaxHeap, [&] {
    IsRefused(ExitStatus::kDeck, [&] {
      const Deck deck = SmallDeck(input.overrides);
      const int ranks = input.ranks > 0 ? input.ranks : SmallestRanks(deck);
      const Mesh mesh = ResolveMesh(deck, ranks);
      if (!IsSmall(deck, mesh)) return;
      const WorldPlan plan = PlanWorld(deck, ranks);
      for (const auto& [rank, program] : plan.programs) RequirePlaced(program);
      ++tally.accepted;
    });
  });
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryCompile(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
