#include "comm/mpi/launcher.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <string>

#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

std::string NameOf(pid_t process) {
  const std::string line = ReadSystemFile("/proc/" + std::to_string(process) + "/comm");
  return line.substr(0, line.find('\n'));
}

bool IsOpenMpis(const std::string& name) {
  for (const char* known : {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted"})
    if (name == known) return true;
  return false;
}

// $1: the process id of the launcher. If the id is reused meanwhile, the start time differs (field 20 after the name).
// A daemon exits cleanly at its second TERM; mpirun would crash.
constexpr const char* kScript = R"sh(
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }
begun=$(started "$1")
[ -n "$begun" ] || exit 0
for _ in 1 2 3 4 5 6; do
  sleep 5
  [ "$(started "$1")" = "$begun" ] || exit 0
done
if grep -qx -e orted -e prted "/proc/$1/comm"; then
  kill -TERM "$1"
  sleep 1
  kill -TERM "$1"
  sleep 3
fi
[ "$(started "$1")" = "$begun" ] && kill -KILL "$1"
)sh";

}  // namespace

// Not with fork(): a process of many GB may not be duplicated. Streams and sockets are closed, since their readers wait
// for the end of file.
void EndLauncherLater() {
  const pid_t launcher = getppid();
  if (!IsOpenMpis(NameOf(launcher))) return;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  if (posix_spawnattr_init(&attributes) != 0 || posix_spawn_file_actions_init(&actions) != 0) return;
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
  for (int stream : {1, 2}) posix_spawn_file_actions_adddup2(&actions, 0, stream);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  std::array<std::string, 5> words = {"sh", "-c", kScript, "sh", std::to_string(launcher)};
  std::array<char*, 6> arguments{};
  for (size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  pid_t child = 0;
  posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
}

}  // namespace espalier
