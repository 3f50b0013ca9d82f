// The health of the nodes of a job before a run starts on them: espalier check --nodes.
#pragma once

#include <string>

#include "espalier/util/error.hpp"

namespace espalier {

struct CheckNodesOptions {
  std::string cluster;  ///< cluster file with the rates of links; empty: links are compared with one another
  double least = 0.7;   ///< share of the median, or of the cluster file's rate, below which something is an outlier
};

/// Measures all ranks of the job at the same time, and the links between them by pairs. Rank 0 prints a table and names
/// outliers. kFault if there are any. Starts and ends MPI. Throws UserError (kDeck) for a wrong cluster file.
ExitStatus CheckNodes(const CheckNodesOptions& options);

}  // namespace espalier
