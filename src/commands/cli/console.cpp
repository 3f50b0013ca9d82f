#include "commands/cli/console.hpp"

#include <fcntl.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "espalier/comm/mpi_world.hpp"

namespace espalier {
namespace {

/// As the conventions of NO_COLOR and CLICOLOR_FORCE have it: set, not empty and not 0.
bool Asks(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

bool WantsColours() {
  if (Asks("CLICOLOR_FORCE")) return true;
  return !Asks("NO_COLOR") && !StartedByLauncher() && ::isatty(STDOUT_FILENO) == 1;
}

}  // namespace

void OpenStandardStreams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", O_RDWR);  // takes the lowest number that is free
}

void ChooseColours() {
  const auto mode = WantsColours() ? spdlog::color_mode::automatic : spdlog::color_mode::never;
  auto sink = std::make_shared<spdlog::sinks::stdout_color_sink_mt>(mode);
  if (Asks("CLICOLOR_FORCE")) sink->set_color_mode(spdlog::color_mode::always);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::move(sink)));
}

}  // namespace espalier
