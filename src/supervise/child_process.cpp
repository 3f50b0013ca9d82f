#include "supervise/child_process.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

constexpr size_t kKept = size_t{256} << 10;
constexpr int kNotFound = 127;

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// This process's environment, with `more` in place of equal names.
std::vector<std::string> EnvironmentWith(const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> all;
  for (const auto& [name, value] : more) all.push_back(name + "=" + value);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry, strcspn(*entry, "="));
    bool replaced = false;
    for (const auto& [key, value] : more) replaced = replaced || key == name;
    if (!replaced) all.emplace_back(*entry);
  }
  return all;
}

/// Between fork and exec only calls that a signal handler may make.
[[noreturn]] void Become(char** words, char** environment, int out, int errors, int nothing, pid_t parent) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGUSR1);
  if (::getppid() != parent) ::raise(SIGKILL);  // it died before the line above
  ::dup2(nothing, STDIN_FILENO);
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  ::execvpe(words[0], words, environment);
  constexpr std::string_view kWhy = "espalier: this command cannot be started: ";
  for (std::string_view part : {kWhy, std::string_view(words[0]), std::string_view("\n")})
    if (::write(STDERR_FILENO, part.data(), part.size()) < 0) break;
  ::_exit(kNotFound);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, Output output,
                           const std::vector<std::pair<std::string, std::string>>& environment)
    : output_(output), printed_(::memfd_create("espalier-errors", MFD_CLOEXEC)) {
  std::vector<std::string> copies = words, variables = EnvironmentWith(environment);
  const std::vector<char*> arguments = Pointers(copies), pointers = Pointers(variables);
  const int nothing = ::memfd_create("espalier-no-input", MFD_CLOEXEC);
  const pid_t parent = ::getpid();
  std::fflush(nullptr);
  if (printed_ >= 0 && nothing >= 0) id_ = ::fork();
  if (id_ == 0)
    Become(const_cast<char**>(arguments.data()), const_cast<char**>(pointers.data()),
           output == Output::kCaptured ? printed_ : -1, printed_, nothing, parent);
  const int reason = errno;
  ::close(nothing);
  if (id_ < 0) {
    ::close(printed_);
    throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be started: {}", words[0], std::strerror(reason)));
  }
}

ChildProcess::~ChildProcess() {
  if (!Poll()) {
    ::kill(-id_, SIGKILL);  // with what it has started in its session
    ::waitpid(id_, nullptr, 0);
  }
  ::close(printed_);
}

void ChildProcess::Read() {
  std::array<char, 16384> block;
  ssize_t n = 0;
  const int64_t before = read_;
  while ((n = ::pread(printed_, block.data(), block.size(), read_)) > 0) {
    read_ += n;
    if (output_ == Output::kErrorsSeen) std::fwrite(block.data(), 1, static_cast<size_t>(n), stderr);
    text_.append(block.data(), static_cast<size_t>(n));
  }
  if (read_ == before) return;
  std::fflush(stderr);
  if (text_.size() > kKept) text_.erase(0, text_.size() - kKept);
  // The part that was read gives its memory back.
  ::fallocate(printed_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, read_);
}

std::optional<int> ChildProcess::Poll() {
  if (!status_) {
    int status = 0;
    if (::waitpid(id_, &status, WNOHANG) == id_)
      status_ = (was_killed_ = WIFSIGNALED(status)) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  Read();
  return status_;
}

void ChildProcess::Signal(int number) const {
  if (!status_) ::kill(id_, number);
}

bool ChildProcess::IsAlone() {
  std::istringstream children(ReadSystemFile(fmt::format("/proc/{0}/task/{0}/children", id_)));
  bool alive = false;
  for (pid_t child = 0; children >> child;) {
    had_children_ = true;
    const std::string stat = ReadSystemFile(fmt::format("/proc/{}/stat", child));
    const size_t bracket = stat.rfind(") ");
    alive = alive || (bracket != stat.npos && stat[bracket + 2] != 'Z' && stat[bracket + 2] != 'X');
  }
  return had_children_ && !alive;
}

int64_t StartTicks(pid_t process) {
  const std::string stat = ReadSystemFile(fmt::format("/proc/{}/stat", process));
  const size_t bracket = stat.rfind(") ");
  if (bracket == stat.npos || stat[bracket + 2] == 'Z') return 0;
  std::istringstream fields(stat.substr(bracket + 2));
  std::string skipped;
  int64_t ticks = 0;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  fields >> ticks;
  return ticks;
}

}  // namespace espalier
