#include "espalier/util/fault.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include "espalier/util/environment.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Sorted by name, since the linker decides the order in which files register.
std::set<std::string_view>& Stages() {
  static std::set<std::string_view> stages;
  return stages;
}

constexpr auto kActions = std::to_array<std::string_view>({"kill", "stop", "hold", "eio", "enospc", "nomem"});
constexpr auto kInstructionActions = std::to_array<std::string_view>({"kill", "stop", "skip", "nan"});
constexpr std::string_view kInstruction = "instruction-";

struct Fault {
  std::string stage, action;
  int64_t visits_left = 0;
};

std::mutex mutex;
Fault fault;

template <typename List>
void CheckOneOf(const List& list, const std::string& text, std::string_view word, const char* what) {
  if (std::find(list.begin(), list.end(), word) == list.end())
    throw UserError(ExitStatus::kDeck, fmt::format("ESPALIER_FAULT = \"{}\": '{}' is no {} (allowed: {})", text, word,
                                                   what, fmt::join(list, ", ")));
}

/// Removes and returns the next word; "" if none is left.
std::string NextWord(std::string_view& rest) {
  const std::string word(rest.substr(0, rest.find(':')));
  rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  return word;
}

/// "instruction-" and a number.
bool IsInstruction(std::string_view stage) {
  if (!stage.starts_with(kInstruction) || stage.size() == kInstruction.size()) return false;
  return std::ranges::all_of(stage.substr(kInstruction.size()), [](char c) { return c >= '0' && c <= '9'; });
}

Fault ParseFault(const std::string& text) {
  std::string_view rest = text;
  Fault parsed{NextWord(rest), NextWord(rest), 1};
  if (parsed.action.empty()) parsed.action = "kill";
  if (IsInstruction(parsed.stage)) {
    CheckOneOf(kInstructionActions, text, parsed.action, "action of an instruction");
  } else {
    CheckOneOf(Stages(), text, parsed.stage, "stage (or instruction-K)");
    CheckOneOf(kActions, text, parsed.action, "action");
  }
  if (rest.empty()) return parsed;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), parsed.visits_left);
  if (error != std::errc{} || end != rest.data() + rest.size() || parsed.visits_left < 1)
    throw UserError(ExitStatus::kDeck,
                    fmt::format("ESPALIER_FAULT = \"{}\": '{}' is no count of visits (allowed: >= 1)", text, rest));
  return parsed;
}

[[noreturn]] void StandStill() {
  while (true) ::pause();
}

/// Creates the file that ESPALIER_FAULT_HOLD names, and waits until it is removed.
void Hold() {
  const auto path = FromEnvironment("ESPALIER_FAULT_HOLD");
  if (!path || !std::ofstream(*path))
    throw UserError(ExitStatus::kDeck, "ESPALIER_FAULT_HOLD must name a file that can be created");
  while (std::filesystem::exists(*path)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace

namespace fault_detail {

std::atomic<bool> armed = false;

namespace {
/// The action if it happens now; it does not happen again.
std::string Take(std::string_view stage) {
  std::string action;
  {
    const std::lock_guard lock(mutex);
    if (stage != fault.stage || --fault.visits_left > 0) return "";
    action = fault.action;
    armed = false;
  }
  if (action == "kill") ::kill(::getpid(), SIGKILL);
  if (action == "kill" || action == "stop") StandStill();
  if (action != "hold") return action;
  Hold();
  return "";
}
}  // namespace

void Visit(std::string_view stage, const std::string& where) {
  const std::string action = Take(stage);
  if (action.empty()) return;
  if (action == "nomem") throw std::bad_alloc();
  throw UserError(ExitStatus::kFault, fmt::format("{}{}{}: {} (by ESPALIER_FAULT)", where, where.empty() ? "" : ": ",
                                                  stage, std::strerror(action == "eio" ? EIO : ENOSPC)));
}

InstructionFault VisitInstruction(int index) {
  const std::string action = Take(fmt::format("{}{}", kInstruction, index));
  return action == "skip"  ? InstructionFault::kSkip
         : action == "nan" ? InstructionFault::kNan
                           : InstructionFault::kNone;
}

}  // namespace fault_detail

FaultStages::FaultStages(std::initializer_list<std::string_view> stages) { Stages().insert(stages); }

void ArmFault(const std::string& text) {
  const std::lock_guard lock(mutex);
  fault = text.empty() ? Fault{} : ParseFault(text);
  fault_detail::armed = !text.empty();
}

void ArmFaultFromEnvironment() { ArmFault(FromEnvironment("ESPALIER_FAULT").value_or("")); }

}  // namespace espalier
