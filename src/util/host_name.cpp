#include "espalier/util/host_name.hpp"

#include <unistd.h>

namespace espalier {

std::string HostName() {
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace espalier
