// Headers that most tests include; a build with -Db_pch=true parses them once per binary (tests/meson.build).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "espalier/util/error.hpp"
