#include "espalier/util/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr std::string_view kPrefix = "ESPALIER_";

const std::vector<EnvironmentVariable>& List() {
  static const std::vector<EnvironmentVariable> list = {
      {"ESPALIER_CUDA_GRAPH", "0: steps on GPUs are issued anew, not replayed as a graph", {"0", "1"}},
      {"ESPALIER_CUDA_MODULE",
       "file of the module for GPUs; it is loaded as a library and so must be trusted as the program is"},
      {"ESPALIER_FAULT", "makes a fault on purpose (doc/dev/fault-injection.md)"},
      {"ESPALIER_FAULT_HOLD", "the file by which a fault of the action hold waits"},
      {"ESPALIER_INSTRUCTION_TIMES",
       "the last step's time by instruction is written to this file and the rank's number"},
      {"ESPALIER_ISA",
       "the highest instruction level that kernels on CPUs use; sse2 to amx on x86-64, neon on aarch64",
       {"sse2", "avx2", "avx512", "avx512_bf16", "amx", "neon"}},
      {"ESPALIER_NCCL_NATIVE", "0: no message goes by a collective of NCCL, all by its sends and receives", {"0", "1"}},
      {"ESPALIER_NCCL_SELF", "1: a test in which every rank sends to itself; the numbers are wrong", {"0", "1"}},
      {"ESPALIER_ROOT", "a clone, or PREFIX/share/espalier: decks are found by name below its folder inputs"},
      {"ESPALIER_SUPERVISED",
       "set by espalier supervise for the processes of a run: its run.dir, by which it finds them"},
  };
  return list;
}

const EnvironmentVariable* Find(std::string_view name) {
  const auto found = std::ranges::find(List(), name, &EnvironmentVariable::name);
  return found == List().end() ? nullptr : &*found;
}

}  // namespace

std::span<const EnvironmentVariable> EnvironmentVariables() { return List(); }

std::optional<std::string> FromEnvironment(const std::string& name) {
  CHECK(Find(name) != nullptr, "{} is not in the list of environment variables", name);
  const char* value = std::getenv(name.c_str());
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

void CheckEnvironment() {
  std::vector<std::string> messages;
  for (const EnvironmentVariable& variable : List()) {
    const auto value = FromEnvironment(variable.name);
    if (!value || variable.allowed.empty() || std::ranges::find(variable.allowed, *value) != variable.allowed.end())
      continue;
    messages.push_back(fmt::format("environment: {} = \"{}\" (allowed: {}, or unset): {}", variable.name, *value,
                                   fmt::join(variable.allowed, ", "), variable.meaning));
  }
  if (!messages.empty()) throw UserError(ExitStatus::kDeck, messages);
}

std::vector<std::string> DescribeEnvironment() {
  std::vector<std::string> lines;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kPrefix)) continue;
    const size_t equals = std::min(text.find('='), text.size() - 1);
    const EnvironmentVariable* known = Find(text.substr(0, equals));
    lines.push_back(fmt::format("{} = {} ({})", text.substr(0, equals), text.substr(equals + 1),
                                known != nullptr ? known->meaning : "not read by the program"));
  }
  std::ranges::sort(lines);
  return lines;
}

}  // namespace espalier
