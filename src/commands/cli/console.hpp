// The standard streams and the colours of the log.
#pragma once

namespace espalier {

/// Opens /dev/null for standard streams that are closed, so that no file of the run gets their numbers. Must be called
/// before anything is opened.
void OpenStandardStreams();

/// The log prints "warning: TEXT", in colour if WantsColours(). A run takes it over (RunLog).
void SetUpLog();

}  // namespace espalier
