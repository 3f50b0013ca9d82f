// TERM, INT, USR1, USR2, HUP and XCPU as requests: finish the step, save, exit with status 75.
#pragma once

#include <string>

namespace espalier {

/// From now on these signals only leave a note; a second INT within 10 s of the first ends the process at once. HUP
/// stays ignored where it was at the start (nohup). PIPE and XFSZ are ignored: a lost reader is EPIPE, a file beyond
/// its limit EFBIG. Where the soft limit of processor time is the hard one, the soft one becomes nine tenths of it. The
/// first thing in main, so that no signal ends a rank while MPI starts; once more after MPI has started, since it may
/// set handlers of its own. What has come stays noted.
void CatchStopSignals();

/// The signals wait from now on, over the start of another image of this process too, until CatchStopSignals.
void HoldStopSignals();

/// The signals end the process again (PIPE too), and one that has come ends it now: for commands that have nothing to
/// save.
void ReleaseStopSignals();

/// The first of them that came to this process; 0: none.
int StopSignal();

/// "SIGTERM", ...
std::string StopSignalName(int signal);

}  // namespace espalier
