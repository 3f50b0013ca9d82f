#include "supervise/ledger.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "espalier/history/run_history.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/json.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxLedgerBytes = int64_t{256} << 20, kMaxLedgerLine = int64_t{1} << 20;

std::vector<std::string> NamesOf(const nlohmann::json& fields, const char* key) {
  std::vector<std::string> names;
  const auto found = fields.find(key);
  if (found == fields.end() || !found->is_array()) return names;
  for (const nlohmann::json& name : *found)
    if (name.is_string()) names.push_back(name.get<std::string>());
  return names;
}

void Take(const nlohmann::json& fields, LedgerPast& past) {
  const std::string event = TextOf(fields, "event");
  if (event == "start") {
    ++past.starts;
    past.orphan = {TextOf(fields, "on"), static_cast<pid_t>(IntegerOf(fields, "launcher").value_or(0)),
                   IntegerOf(fields, "launcher_ticks").value_or(0)};
  } else if (event == "failure") {
    past.orphan.reset();
    past.failures.push_back(NamesOf(fields, "hosts"));
    for (const std::string& name : NamesOf(fields, "excluded")) past.excluded.push_back(name);
  } else if (event == "end") {
    past = {past.starts, {}, {}, {}};
  }
}

/// True for a file that is missing or empty, too.
bool EndsInNewline(const std::string& path) try {
  const InputFile file(path);
  char last = '\n';
  if (file.bytes() > 0) file.ReadAt(file.bytes() - 1, &last, 1);
  return last == '\n';
} catch (const UserError&) {
  return true;
}

}  // namespace

std::string LedgerFile(const std::string& run_dir) { return run_dir + "/supervise.jsonl"; }

LedgerPast ReadLedger(const std::string& run_dir) {
  LedgerPast past;
  std::error_code error;
  if (!std::filesystem::exists(LedgerFile(run_dir), error)) return past;
  InputLines lines(LedgerFile(run_dir), {.what = "ledger of a supervisor", .most_bytes = kMaxLedgerBytes},
                   kMaxLedgerLine);
  for (InputLines::Line line; lines.Next(line);) try {
      if (!line.text.empty()) Take(ParseJson(line.text, {}), past);
    } catch (const std::exception&) {
      // Torn: its supervisor was killed.
    }
  return past;
}

void Ledger::Write(nlohmann::ordered_json line) {
  line["time"] = std::round(SecondsSinceEpoch() * 1e3) / 1e3;
  std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!EndsInNewline(path_)) text = "\n" + text;  // a supervisor that was killed may have left a part of a line
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  const bool written = file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int reason = errno;
  if (file >= 0) ::close(file);
  if (written || warned_) return;
  warned_ = true;
  spdlog::warn("{}: cannot be written ({}): a supervisor that is started again will not know what this one did", path_,
               std::strerror(reason));
}

}  // namespace espalier
