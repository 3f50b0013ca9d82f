#include "commands/cli/console.hpp"

#include <fcntl.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "espalier/report/terminal.hpp"

namespace espalier {

void OpenStandardStreams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", O_RDWR);  // takes the lowest number that is free
}

void SetUpLog() {
  auto sink = std::make_shared<spdlog::sinks::stdout_color_sink_mt>();
  sink->set_color_mode(WantsColours() ? spdlog::color_mode::always : spdlog::color_mode::never);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::move(sink)));
  spdlog::set_pattern("%^%l%$: %v");
}

}  // namespace espalier
