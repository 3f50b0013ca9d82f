// espalier run: trains.
#include "commands.hpp"

namespace espalier {

int RunCommand(const RunOptions& options) { return static_cast<int>(Train(options)); }

}  // namespace espalier
