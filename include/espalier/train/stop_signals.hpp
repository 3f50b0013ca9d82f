// TERM, INT, USR1, USR2, HUP and XCPU ask a run to finish the step, save, and exit with status 75.
#pragma once

#include <string>

namespace espalier {

/// From now on these signals are only recorded; a second INT within 10 s of the first ends the process at once. HUP
/// stays ignored if it was ignored at the start (nohup). PIPE and XFSZ are ignored, since the calls report EPIPE and
/// EFBIG. If the soft limit of CPU time equals the hard one, it is lowered to nine tenths. Call it first in main, so
/// that no signal ends a rank while MPI starts, and again after MPI has started, since MPI may install handlers.
/// Signals recorded so far are kept.
void CatchStopSignals();

/// From now on the first signal is reported at once, in one line on standard error: for rank 0 of a training run.
void SayStopSignals();

/// Blocks the signals until CatchStopSignals, also across exec of another image in this process.
void HoldStopSignals();

/// The signals (and PIPE) end the process again, and an already recorded one ends it now: for commands that have
/// nothing to save.
void ReleaseStopSignals();

/// The first of these signals that this process received; 0: none.
int StopSignal();

/// "SIGTERM", ...
std::string StopSignalName(int signal);

}  // namespace espalier
