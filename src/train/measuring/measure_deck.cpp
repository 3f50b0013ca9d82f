#include "train/measuring/measure_deck.hpp"

#include <algorithm>
#include <chrono>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/median.hpp"
#include "train/measuring/kernel_times.hpp"
#include "train/measuring/made_up_batch.hpp"
#include "train/measuring/transfer_times.hpp"
#include "train/programs.hpp"
#include "train/state/initialize_weights.hpp"

namespace espalier {
namespace {

constexpr int kWarmUpSteps = 2, kMinSteps = 5, kMaxSteps = 30;
constexpr double kEnoughMs = 3000;
constexpr double kBurst = 0.05, kSteady = 0.25;        // parts of a load that are compared
constexpr double kSamples = 100, kLeastPeriodMs = 10;  // of clocks during a load
constexpr int64_t kManyBytes = int64_t{32} << 20;      ///< larger than the caches of a core

/// The results of one rank.
struct RankResult {
  std::vector<KernelSum> sums;
  double spread = 0, bytes_per_us = 0;
  auto Fields() { return std::tie(sums, spread, bytes_per_us); }
};

/// The steps of one deck on this rank.
class Measuring {
 public:
  Measuring(const Deck& deck, World& world, MpiWorld* mpi, Device& device)
      : deck_(deck),
        world_(world),
        device_(device),
        programs_(deck, world, mpi, device),
        times_(programs_.training().program(), programs_.coordinate()),
        transfers_(programs_, world),
        batch_(MadeUpBatch(programs_.layout(), deck.model.vocab)) {
    InitializeWeights(programs_.compilation(), executor());
  }

  void Run(double steady_s) {
    for (int step = 0; step < kWarmUpSteps; ++step) Step();
    if (steady_s > 0) Load(steady_s);
    const auto began = std::chrono::steady_clock::now();
    while (times_.steps() < kMinSteps ||
           (times_.steps() < kMaxSteps && world_.Max(MillisecondsSince(began) < kEnoughMs ? 0 : 1) == 0))
      TimedStep();
  }

  /// On rank 0.
  DeckMeasurement Result(int ranks_per_node) {
    const RankResult mine{times_.Sums(), times_.Spread(), times_.BestBytesPerUs(kManyBytes)};
    DeckMeasurement all;
    all.steps = times_.steps();
    all.step_ms = MedianOf(steps_ms_);
    all.gap_us = MedianOf(gaps_us_);
    all.load = load_;
    std::vector<std::vector<KernelSum>> of_ranks;
    for (RankResult& rank : Gathered(world_, mine)) {
      of_ranks.push_back(std::move(rank.sums));
      all.spread = std::max(all.spread, rank.spread);
      all.bytes_per_us = std::max(all.bytes_per_us, rank.bytes_per_us);
    }
    all.table.kernels = RowsOf(of_ranks);
    all.table.collectives = transfers_.Rows(ranks_per_node);
    return all;
  }

 private:
  Executor& executor() const { return programs_.training().executor(); }

  StepTimes Step() {
    const Runnable& runnable = programs_.training().runnable;
    runnable.Fill(batch_, programs_.layout().positions);
    ++step_;
    runnable.FillScalars(deck_, step_);
    return executor().RunStep();
  }

  /// Steps that nothing interrupts, so that clocks settle as they do in a run.
  void Load(double seconds) {
    std::vector<double> begin_ms, step_ms;
    ClockWatch watch(device_.BusId(), std::max(1e3 * seconds / kSamples, kLeastPeriodMs));
    const auto began = std::chrono::steady_clock::now();
    do {
      begin_ms.push_back(MillisecondsSince(began));
      step_ms.push_back(Step().step_ms);
    } while (world_.Max(MillisecondsSince(began) < 1e3 * seconds ? 0 : 1) == 0);
    const double end_ms = MillisecondsSince(began);
    const auto median = [&](double from, double to) {
      std::vector<double> within;
      for (size_t i = 0; i < step_ms.size(); ++i)
        if (from * end_ms <= begin_ms[i] && begin_ms[i] < to * end_ms) within.push_back(step_ms[i]);
      return within.empty() ? step_ms.back() : MedianOf(within);
    };
    const std::vector<ClockSample> samples = watch.Stop();
    load_ = {.seconds = end_ms / 1e3,
             .steps = static_cast<int>(step_ms.size()),
             .burst_ms = median(0, kBurst),
             .steady_ms = median(1 - kSteady, 1),
             .burst = MeanOfRanks(MeansOf(samples, 0, kBurst * end_ms)),
             .steady = MeanOfRanks(MeansOf(samples, (1 - kSteady) * end_ms, end_ms)),
             .no_clocks = watch.problem()};
  }

  ClockMeans MeanOfRanks(const ClockMeans& mine) const { return MeansOf(OfAllRanks(world_, std::vector{mine})); }

  void TimedStep() {
    transfers_.Before();
    executor().TimeNextStep();
    const StepTimes times = Step();
    transfers_.Add(programs_.training());
    const double gap_us = GapUs(programs_.device(), times, times_.calls());
    times_.Add(executor().instruction_ms(), gap_us);
    gaps_us_.push_back(gap_us);
    steps_ms_.push_back(times.step_ms);
  }

  const Deck& deck_;
  World& world_;
  const Device& device_;
  Programs programs_;
  KernelTimes times_;
  TransferTimes transfers_;
  Batch batch_;
  int64_t step_ = 0;
  SteadyLoad load_;
  std::vector<double> gaps_us_, steps_ms_;
};

}  // namespace

DeckMeasurement MeasureDeck(const Deck& deck, World& world, MpiWorld* mpi, Device& device, double steady_s) {
  const auto began = std::chrono::steady_clock::now();
  Measuring measuring(deck, world, mpi, device);
  measuring.Run(steady_s);
  DeckMeasurement result = measuring.Result(mpi == nullptr ? 1 : mpi->NodeRanks());
  result.seconds = MillisecondsSince(began) / 1e3;
  return result;
}

}  // namespace espalier
