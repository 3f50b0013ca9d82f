// The standard streams and the colours of the log.
#pragma once

namespace espalier {

/// Opens /dev/null for standard streams that are closed, so that no file of the run gets their numbers. Must come
/// before anything is opened.
void OpenStandardStreams();

/// The log has colours on a terminal, unless NO_COLOR is set or a launcher made the terminal (Open MPI gives every rank
/// one), and wherever CLICOLOR_FORCE is set.
void ChooseColours();

}  // namespace espalier
