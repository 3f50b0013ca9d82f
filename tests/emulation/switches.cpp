#include "switches.hpp"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

namespace espalier::emulation {
namespace {

std::vector<std::string> WordsOf(const char* variable) {
  std::vector<std::string> words;
  const char* set = std::getenv(variable);
  std::istringstream text(set == nullptr ? "" : set);
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

}  // namespace

bool HasSwitch(const char* variable, const std::string& word) {
  for (const std::string& set : WordsOf(variable))
    if (set == word) return true;
  return false;
}

std::string Switch(const char* variable, const std::string& prefix) {
  for (const std::string& set : WordsOf(variable))
    if (set.rfind(prefix, 0) == 0) return set.substr(prefix.size());
  return "";
}

long SwitchedNumber(const char* variable, const std::string& prefix, long otherwise) {
  const std::string number = Switch(variable, prefix);
  return number.empty() ? otherwise : std::strtol(number.c_str(), nullptr, 10);
}

int Capability() { return static_cast<int>(SwitchedNumber("ESPALIER_EMULATED_CAPABILITY", "", 90)); }

int Version(const std::string& library, int built, int per_major, int per_minor) {
  int major = 0, minor = 0;
  const std::string version = Switch("ESPALIER_EMULATED_VERSIONS", library + "=");
  if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) != 2) return built;
  return major * per_major + minor * per_minor;
}

}  // namespace espalier::emulation
