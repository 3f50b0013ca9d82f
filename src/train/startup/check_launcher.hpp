// Checks that the launcher uses the protocol of this MPI library.
#pragma once

namespace espalier {

/// Throws AgreedError (kDeck) if the launcher started more processes than the `ranks` that MPI has found: launcher and
/// MPI library are incompatible, and every process would train alone.
void CheckLauncher(int ranks);

}  // namespace espalier
