// Measures this machine for a cluster file: kernels of decks in their own programs, messages between the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {

/// Which shapes of a deck are measured.
enum class Shapes : uint8_t {
  kOwn,         ///< as in the deck
  kNeighbours,  ///< also half and twice batch.micro, and half and twice model.seq_len
};

struct MeasureOptions {
  std::string file;                    ///< cluster file, made or extended
  std::vector<std::string> decks;      ///< may be empty: only the machine and its messages
  std::vector<std::string> overrides;  ///< overrides of every deck
  Shapes shapes = Shapes::kOwn;
  double steady_s = 0;  ///< the first deck runs so long before it is timed: device.sustained_share
};

/// Measures on all ranks of the job at the same time; rank 0 prints the measurements and writes the file. New rows
/// replace rows of an earlier file of the same machine; other rows stay. Starts and ends MPI. Throws UserError: kDeck
/// for wrong decks, and for a file that cannot be read or belongs to another machine.
ExitStatus Measure(const MeasureOptions& options);

}  // namespace espalier
