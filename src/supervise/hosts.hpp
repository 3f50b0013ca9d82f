// The hosts of a supervised run, from the command line, a file, or the allocation of a job.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/supervise/supervise.hpp"

namespace espalier {

struct HostList {
  std::vector<std::string> names;  ///< each once
  int ranks_each = 1;
  std::string origin;  ///< "--hosts", "PBS_NODEFILE", "this host"
};

/// The value of an environment variable; "" if it is not set.
using Variables = std::function<std::string(const char*)>;

/// "a[1-3,07],b" as names: how Slurm writes lists. Throws UserError (kDeck) for brackets that do not close or hold
/// anything but numbers.
std::vector<std::string> ExpandNodeList(std::string_view text);

/// The first that is given: --hosts, --hostfile, the allocation of Slurm, PBS or LSF, this host with `alone` ranks.
/// Throws UserError (kDeck) if hosts differ in their number of ranks, or leave no host beside the spares.
HostList FindHosts(const SuperviseOptions& options, const Variables& variables, const std::string& this_host,
                   int alone);

}  // namespace espalier
