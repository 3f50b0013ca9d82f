// The standard streams and what the log looks like on them.
#pragma once

namespace espalier {

/// Opens /dev/null in the place of standard streams that are closed: a file of the run must not get their numbers.
/// Before anything is opened.
void OpenStandardStreams();

/// The log has colours only where a person sees them: on a terminal that no launcher has made (Open MPI gives every
/// rank one), without NO_COLOR; or where CLICOLOR_FORCE asks for them.
void ChooseColours();

}  // namespace espalier
