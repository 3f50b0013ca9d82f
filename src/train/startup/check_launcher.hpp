// What the launcher says of this job, before and beside MPI.
#pragma once

namespace espalier {

/// Throws UserError (kDeck) if the launcher has started more processes than the `ranks` that MPI has found: it does not
/// speak the MPI library's language, and each process would train alone.
void CheckLauncher(int ranks);

}  // namespace espalier
