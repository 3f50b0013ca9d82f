// The launcher that started this process.
#pragma once

namespace espalier {

/// Starts a process that ends Open MPI's launcher on this host if it still runs half a minute after this call: mpirun
/// and its daemons wait for each other when the network between them is down, and may deadlock. Other launchers are
/// left alone.
void EndLauncherLater();

}  // namespace espalier
