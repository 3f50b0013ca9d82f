// TERM, INT, USR1 and USR2 as requests: finish the step, save, exit with status 75.
#pragma once

#include <string>

namespace espalier {

/// From now on the four signals only leave a note; a second INT within 10 s of the first ends the process at once. The first
/// thing in main, so that no signal ends a rank while MPI starts; once more after MPI has started, since it may set handlers
/// of its own. What has come stays noted.
void CatchStopSignals();

/// The signals end the process again, and one that has come ends it now: for commands that have nothing to save.
void ReleaseStopSignals();

/// The first of them that came to this process; 0: none.
int StopSignal();

/// "SIGTERM", ... of the four.
std::string StopSignalName(int signal);

}  // namespace espalier
