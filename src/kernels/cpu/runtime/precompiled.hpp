// Headers that most kernels include: what a build with -Db_pch=true parses once per level (src/kernels/meson.build).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/runtime/kernels.hpp"
