// Headers that most kernels include; a build with -Db_pch=true parses them once per level (src/kernels/meson.build).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/runtime/kernels.hpp"
