// Ticks of axes.
#pragma once

#include <string>
#include <vector>

namespace espalier {

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`, which is positive.
double RoundStep(double least);

/// Round multiples within [begin, end], ascending, with at most `most` steps between them and at least about a third of
/// that. None if the interval is empty.
std::vector<double> RoundValues(double begin, double end, int most);

/// Powers of ten within [begin, end], both positive; with few of them 2 and 5 times these too. Ascending, at most
/// `most`, which is at least 2.
std::vector<double> RoundPowers(double begin, double end, int most);

}  // namespace espalier
