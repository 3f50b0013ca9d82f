// Command lines of launchers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier {

enum class LauncherKind : uint8_t { kNone, kMpirun, kSrun };

struct Launcher {
  LauncherKind kind = LauncherKind::kMpirun;
  std::vector<std::string> words;  ///< what it is called by, with options of the user
};

/// The name of the variable that marks the processes of a supervised run; its value is the absolute run directory.
inline constexpr const char* kSupervised = "ESPALIER_SUPERVISED";

/// Reads the words of --launch. Throws UserError (kDeck) if the first is neither mpirun, mpiexec nor srun.
Launcher LauncherOf(const std::string& words);

/// Runs `program` on so many ranks, at most `ranks_each` on each of the hosts, in their order. Without a launcher: the
/// program alone.
std::vector<std::string> RunWords(const Launcher& launcher, const std::vector<std::string>& hosts, int ranks,
                                  int ranks_each, const std::vector<std::string>& program);

/// Runs `program` once on one host, beside nothing else.
std::vector<std::string> OnHostWords(const Launcher& launcher, const std::string& host,
                                     const std::vector<std::string>& program);

}  // namespace espalier
