// Files of the source tree. Only source_tree.cpp is compiled with the path of the tree, so that a compiler cache works
// for the tests of every clone.
#pragma once

#include <string>

namespace espalier {

/// The absolute path of a file of the tree: InTree("inputs/llama/tiny.toml").
std::string InTree(const std::string& path);

}  // namespace espalier
