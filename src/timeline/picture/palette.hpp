// Colours and their names. They are from the "vibrant" and "muted" schemes of Paul Tol (Colour Schemes, SRON, 2021),
// which readers with colour-vision deficiencies can distinguish. Exposed communication is hatched as well.
#pragma once

#include <string>
#include <string_view>

#include "timeline/picture/jobs.hpp"

namespace espalier {

/// The CSS class of a job's bar: "F0" for forward of the stage's first chunk.
std::string ClassOf(JobKind kind, int chunk);
/// True if text on the bar must be dark.
bool IsLight(JobKind kind, int chunk, int chunks);
std::string_view LegendOf(JobKind kind);  ///< "forward"

/// The classes of the whole picture, which is inside an element of class "timeline"; stages have at most `chunks`
/// chunks.
std::string StyleSheet(int chunks, bool copies);

}  // namespace espalier
