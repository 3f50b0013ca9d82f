#include "source_tree.hpp"

namespace espalier {

std::string InTree(const std::string& path) { return SOURCE_ROOT "/" + path; }

}  // namespace espalier
