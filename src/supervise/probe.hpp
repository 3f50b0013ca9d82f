// Which hosts answer, and are free of what earlier starts have left.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "espalier/supervise/supervise.hpp"
#include "supervise/launcher.hpp"

namespace espalier {

struct ProbeOptions {
  Launcher launcher;
  std::string this_host;  ///< cleaned in this process
  OnHostOptions on_host;
  double patience_s = 15;
};

/// Which hosts answer; nothing is cleaned, so that it may be asked while the run goes on.
std::set<std::string> WhichAnswer(const std::vector<std::string>& hosts, const Launcher& launcher, double patience_s);

/// Cleans the hosts, all at once, through the launcher. Returns those on which that has ended in time. Once `enough`
/// have, the others get as long again, at least a second.
std::set<std::string> Probe(const std::vector<std::string>& hosts, size_t enough, const ProbeOptions& options);

}  // namespace espalier
