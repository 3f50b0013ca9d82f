// Figures derived from a simulated step: rates, the length of the run, and whether it fits.
#pragma once

#include "commands/simulate/saves.hpp"

namespace espalier {

struct Figures {
  double step_s = 0;
  double tokens_per_s = 0;       ///< all ranks
  double peak_tflops = 0;        ///< peak of one device, in the precision of the deck
  double mfu = 0, mfu_full = 0;  ///< model flops, with causal and with full attention, over the peak
  double run_s = 0;              ///< time of run.steps steps, and the known part of the time that saves block them
  double node_hours = 0;         ///< node hours of the run
  double exposed_us = 0;         ///< exposed time of the slowest rank, all axes
  ByCostSource<double> source_share{};  ///< share of the time of all instructions of all ranks; the sum is 1

  int64_t peak_bytes = 0;     ///< peak of the rank that needs most
  int peak_rank = 0;          ///< the first such rank
  int64_t staging_bytes = 0;  ///< host memory for saves; on CPUs it is the device's memory too
  int64_t free_bytes =
      0;  ///< memory of the device less peak, reserved memory and, on CPUs, staging and copies; negative: short
  Saves saves;
  MemoryCopies copies;

  bool fits() const { return free_bytes >= 0; }
};

Figures FiguresOf(const Prediction& prediction);

/// Bytes at a rank's peak: training, proof and, if the deck evaluates, evaluation.
int64_t PeakOf(const Prediction& prediction, int rank);

/// Throws UserError (kDoesNotFit) with rank, bytes, purpose and the device's memory, after all output so far is
/// written.
void RefuseIfItDoesNotFit(const Prediction& prediction, const Figures& figures);

}  // namespace espalier
