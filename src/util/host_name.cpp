#include "espalier/util/host_name.hpp"

#include <unistd.h>

#include <sstream>

#include "espalier/util/input_file.hpp"

namespace espalier {

std::string HostName() {
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

const std::string& NodeKey() {
  static const std::string key = [] {
    std::istringstream file(ReadSystemFile("/proc/sys/kernel/random/boot_id"));
    std::string id;
    return file >> id ? id : HostName();
  }();
  return key;
}

}  // namespace espalier
