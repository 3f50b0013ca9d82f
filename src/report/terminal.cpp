#include "espalier/report/terminal.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/comm/mpi_world.hpp"
#include "espalier/util/input_file.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration): not every C library declares it

namespace espalier {
namespace {

/// The programs of Open MPI and PRRTE that start ranks and print their output.
constexpr std::array<std::string_view, 5> kLaunchers = {"mpirun", "mpiexec", "orterun", "prterun", "prte"};

constexpr std::array<std::string_view, 3> kChangesOutput = {"output", "xml", "xterm"};

/// By the conventions of NO_COLOR and CLICOLOR_FORCE: set, not empty and not 0.
bool Asks(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

bool CanMoveBack() {
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

/// The words of a process's command line; none if they cannot be read.
std::vector<std::string> WordsOf(pid_t process) {
  std::istringstream file(ReadSystemFile(fmt::format("/proc/{}/cmdline", process)));
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

/// An option or a variable such as --tag-output, --output-filename, --xml, -xterm or OMPI_MCA_orte_tag_output.
bool ChangesOutput(std::string_view word) {
  return std::ranges::any_of(kChangesOutput, [&](std::string_view part) { return word.find(part) != word.npos; });
}

bool LauncherPassesTextOn(const std::vector<std::string>& words) {
  if (words.empty()) return false;
  const std::string name = std::filesystem::path(words.front()).filename().string();
  if (std::ranges::find(kLaunchers, name) == kLaunchers.end()) return false;
  for (size_t i = 1; i < words.size(); ++i)
    if (words[i].starts_with("-") && ChangesOutput(words[i])) return false;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable, name_of = text.substr(0, text.find('='));
    if (name_of.find("_MCA_") != name_of.npos && ChangesOutput(name_of)) return false;
  }
  return true;
}

/// The destination of the text that this process writes to `descriptor`; empty: unknown.
std::string Destination(int descriptor) {
  if (!StartedByLauncher()) return fmt::format("/proc/self/fd/{}", descriptor);
  const pid_t parent = ::getppid();
  return LauncherPassesTextOn(WordsOf(parent)) ? fmt::format("/proc/{}/fd/1", parent) : "";
}

}  // namespace

std::optional<Terminal> Terminal::Of(int descriptor) {
  if (!CanMoveBack() || ::isatty(descriptor) == 0) return std::nullopt;
  const std::string path = Destination(descriptor);
  if (path.empty()) return std::nullopt;
  const int opened = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (opened < 0) return std::nullopt;
  Terminal terminal(opened);
  return ::isatty(opened) == 1 ? std::optional<Terminal>(std::move(terminal)) : std::nullopt;
}

Terminal::~Terminal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Terminal::Terminal(Terminal&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

int Terminal::Width() const {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

bool WantsColours() {
  if (Asks("CLICOLOR_FORCE")) return true;
  return !Asks("NO_COLOR") && !StartedByLauncher() && ::isatty(STDOUT_FILENO) == 1;
}

}  // namespace espalier
