// The launcher that started this process.
#pragma once

namespace espalier {

/// Leaves a process behind that ends Open MPI's launcher on this host, if it is still there half a minute after this
/// call: mpirun and its daemons wait for each other when the network between them is down, and may lock themselves out.
/// Other launchers are left alone.
void EndLauncherLater();

}  // namespace espalier
