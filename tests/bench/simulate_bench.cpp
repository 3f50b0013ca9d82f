// How long a simulation takes, folded and unfolded: simulate_bench DECK RANKS CLUSTER [key=value ...]
// The programs are made before. Prints one line per simulation: milliseconds, million instructions per second, memory.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <map>

#include "espalier/deck/parse.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/simulate/simulate.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

double PeakGigabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024e-9;
}

void Time(const char* name, const WorldPrograms& world, const Costs& costs, const SimulateOptions& options) {
  const Clock::time_point begin = Clock::now();
  const Simulation s = Simulate(world, costs, options);
  const double ms = Milliseconds(begin);
  fmt::print(
      "{:24} {:10.1f} ms, {} instructions of {} classes, {:.2f} million per second, peak {:.2f} GB, step {} us\n", name,
      ms, s.events, s.classes.size(), static_cast<double>(s.events) / ms / 1000, PeakGigabytes(), s.step_us);
}

void Run(const std::string& deck, int ranks, const std::string& cluster, const std::vector<std::string>& overrides) {
  Clock::time_point begin = Clock::now();
  const Compilation c = Compile(LoadDeck(deck, overrides).deck, ranks, Purpose::kTrain);
  const std::vector<int> representative = ClassRepresentatives(c);
  std::map<int, std::shared_ptr<const Program>> programs;
  for (int rank : representative)
    if (!programs.contains(rank)) programs[rank] = std::make_shared<Program>(MakeProgram(c, c.mesh.CoordinateOf(rank)));
  fmt::print("{} programs made in {:.0f} ms\n", programs.size(), Milliseconds(begin));
  const WorldPrograms world{c.mesh, representative, [&](int rank) { return programs.at(rank); }};
  const Costs costs(LoadCluster(cluster));
  SimulateOptions options;
  Time("folded, first", world, costs, options);
  Time("folded", world, costs, options);
  options.interference = false;
  Time("folded, alone", world, costs, options);
  options.fold = false;
  Time("unfolded, alone", world, costs, options);
  options.interference = true;
  Time("unfolded", world, costs, options);
  options.jitter = 0.01;
  Time("unfolded, jitter", world, costs, options);
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: simulate_bench DECK RANKS CLUSTER [key=value ...]\n");
    return 2;
  }
  espalier::Run(argv[1], std::stoi(argv[2]), argv[3], {argv + 4, argv + argc});
}
