// espalier evaluate: loss and perplexity of a trained model on files, on any number of ranks.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "commands/output_file.hpp"
#include "commands/refuse.hpp"
#include "espalier/report/text.hpp"
#include "espalier/train/evaluate_files.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr size_t kMinName = 12;

/// "a.txt", or "a.txt document 3".
struct NamedScore {
  std::string name;
  int64_t documents;
  const Score* score;
};

std::vector<NamedScore> RowsOf(const Evaluated& all, bool documents) {
  std::vector<NamedScore> rows;
  int64_t count = 0;
  for (const FileScore& file : all.files) {
    const auto own = std::ssize(file.documents);
    rows.push_back({file.path, own, &file.total});
    for (int64_t i = 0; documents && i < own; ++i)
      rows.push_back({fmt::format("  document {}", i), 1, &file.documents[static_cast<size_t>(i)].score});
    count += own;
  }
  if (all.files.size() > 1) rows.push_back({"all", count, &all.total});
  return rows;
}

void PrintRow(const NamedScore& row, size_t width) {
  const Score& s = *row.score;
  fmt::print("{:<{}} {:>9} {:>10}", row.name, width, row.documents, s.targets);
  if (s.targets == 0) return fmt::print(" {:>9} {:>11} {:>10}\n", "-", "-", "-");
  const std::optional<double> bits = s.BitsPerByte();
  fmt::print(" {:>9.5f} {:>11.5g} {:>10}\n", s.MeanLoss(), s.Perplexity(), bits ? fmt::format("{:.5f}", *bits) : "-");
}

void Print(const Evaluated& all, bool documents) {
  fmt::print("checkpoint  {}, step {}\n", all.checkpoint, all.step);
  fmt::print("model       {}\n", all.model);
  fmt::print("tokens      {}\n", all.tokens);
  fmt::print("windows     {} tokens, one every {}; on {}: {}\n\n", all.seq_len, all.stride, Counted(all.ranks, "rank"),
             all.mesh);
  const std::vector<NamedScore> rows = RowsOf(all, documents);
  size_t width = kMinName;
  for (const NamedScore& row : rows) width = std::max(width, row.name.size());
  fmt::print("{:<{}} {:>9} {:>10} {:>9} {:>11} {:>10}\n", "file", width, "documents", "targets", "loss", "perplexity",
             "bits/byte");
  for (const NamedScore& row : rows) PrintRow(row, width);
  int64_t without = 0;
  for (const FileScore& file : all.files) without += file.WithoutTarget();
  if (without > 0)
    fmt::print("\n{} without a target that counts, such as one of a single token: left out of the means\n",
               Counted(without, "document"));
}

nlohmann::ordered_json ScoreJson(const Score& s) {
  const bool known = s.targets > 0;
  const std::optional<double> bits = known ? s.BitsPerByte() : std::nullopt;
  nlohmann::ordered_json json;
  json["targets"] = s.targets;
  json["loss"] = known ? nlohmann::ordered_json(s.MeanLoss()) : nullptr;
  json["perplexity"] = known ? nlohmann::ordered_json(s.Perplexity()) : nullptr;
  json["bytes"] = s.bytes ? nlohmann::ordered_json(*s.bytes) : nullptr;
  json["bits_per_byte"] = bits ? nlohmann::ordered_json(*bits) : nullptr;
  return json;
}

nlohmann::ordered_json FileJson(const FileScore& file) {
  nlohmann::ordered_json json = {{"path", file.path}};
  json.update(ScoreJson(file.total));
  json["without_target"] = file.WithoutTarget();
  json["documents"] = nlohmann::ordered_json::array();
  for (const DocumentScore& document : file.documents) {
    nlohmann::ordered_json one = {{"tokens", document.tokens}};
    one.update(ScoreJson(document.score));
    json["documents"].push_back(std::move(one));
  }
  return json;
}

/// The content does not depend on the ranks, so that equal results give equal files.
std::string ToJson(const Evaluated& all) {
  nlohmann::ordered_json json = {{"checkpoint", all.checkpoint}, {"step", all.step},       {"model", all.model},
                                 {"tokens", all.tokens},         {"seq_len", all.seq_len}, {"stride", all.stride}};
  json["total"] = ScoreJson(all.total);
  json["files"] = nlohmann::ordered_json::array();
  for (const FileScore& file : all.files) json["files"].push_back(FileJson(file));
  return json.dump(1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

/// A key of the deck among the files: "model.seq_len=64".
bool IsKey(const std::string& argument) {
  const size_t equals = argument.find('='), dot = argument.find('.');
  return equals != argument.npos && dot < equals && argument.find('/') >= equals && argument.find('*') >= equals;
}

}  // namespace

int EvaluateCommand(EvaluateCommandOptions options) {
  CheckWritable("--json", options.json);
  const auto keys = std::ranges::stable_partition(options.evaluate.files, std::not_fn(IsKey));
  options.evaluate.overrides.assign(keys.begin(), keys.end());
  options.evaluate.files.erase(keys.begin(), keys.end());
  if (options.evaluate.files.empty()) Refuse("FILES are missing: texts, jsonl or token files (doc/evaluate.md)");
  return static_cast<int>(EvaluateFiles(options.evaluate, [&](const Evaluated& all) {
    Print(all, options.documents);
    WriteOutput(options.json, ToJson(all));
  }));
}

}  // namespace espalier
