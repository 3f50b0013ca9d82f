// Numbers of cluster files: each value of a key is refused with its range, or the times of a step are sane.
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "cluster_testing.hpp"
#include "commands/simulate/output.hpp"
#include "costs/cluster_schema.hpp"
#include "costs/kernel_key.hpp"
#include "simulate/simulate_testing.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr const char* kOddValues[] = {"-1", "0", "1e-308", "1e-30", "1e308", "nan", "inf", "-inf"};

bool IsNumber(const ClusterKey& key) { return std::isfinite(key.allowed.max); }
bool IsCurve(const ClusterKey& key) { return std::holds_alternative<Curve& (*)(Cluster&)>(key.field); }
bool IsTiles(const ClusterKey& key) {
  return std::holds_alternative<std::vector<MatmulTile>& (*)(Cluster&)>(key.field);
}
bool IsInteger(const ClusterKey& key) {
  return std::holds_alternative<int& (*)(Cluster&)>(key.field) ||
         std::holds_alternative<int64_t& (*)(Cluster&)>(key.field);
}

/// A file of a machine with all links, in which one key at a time is replaced.
std::map<std::string, std::string> RealKeys() {
  std::map<std::string, std::string> keys;
  const Cluster cluster = LoadCluster(InTree("inputs/clusters/h100-8x400g.toml"));
  for (const ClusterKey& key : ClusterSchema()) keys[key.FullName()] = KeyText(cluster, key);
  keys["cluster.ranks_per_node"] = "4";
  keys["storage.node_bytes_per_us"] = keys["storage.total_bytes_per_us"] = "5000.0";
  return keys;
}

std::string FileOf(const std::map<std::string, std::string>& keys, const std::string& rows = "") {
  std::string text;
  std::string_view section;
  for (const ClusterKey& key : ClusterSchema()) {
    if (section != key.section) text += fmt::format("[{}]\n", key.section);
    section = key.section;
    text += fmt::format("{} = {}\n", key.name, keys.at(key.FullName()));
  }
  return text + rows;
}

/// Forms of a key's value that have `number` in them.
std::vector<std::string> FormsOf(const ClusterKey& key, const std::string& number) {
  if (IsCurve(key)) return {"[[1000, " + number + "]]", "[[" + number + ", 0.5]]"};
  if (IsTiles(key))
    return {"[[" + number + ", 128, 1.0]]", "[[128, " + number + ", 1.0]]", "[[128, 128, " + number + "]]"};
  return {number};
}

/// Messages of every kind, over nodes and within them.
const CompiledWorld& World() {
  static const CompiledWorld world({"parallel.pp=2", "parallel.dp_shard=2", "parallel.cp=2", "parallel.tp=2",
                                    "model.layers=2", "batch.global=4", "precision.compute=bf16"},
                                   16);
  return world;
}

void ExpectSane(const std::string& path, const std::string& what) {
  SCOPED_TRACE(what);
  const Simulation simulation = Simulate(World().Programs(), Costs(LoadCluster(path)), {});
  EXPECT_TRUE(std::isfinite(simulation.step_us) && simulation.step_us > 0) << simulation.step_us;
  for (const RankTimes& times : simulation.classes) {
    const Breakdown& parts = times.breakdown;
    double sum = parts.compute_us + parts.idle_us;
    for (const double us : parts.exposed_us) sum += us;
    EXPECT_NEAR(sum, simulation.step_us, 1e-6 * simulation.step_us);
  }
  EXPECT_THAT(DurationText(simulation.step_us), testing::MatchesRegex("[0-9].*"));
}

/// Refused at its place with the range, or sane.
void ExpectRefusedOrSane(const ClusterFiles& files, const std::string& name, const std::string& value,
                         const std::string& text, const std::string& allowed) {
  const std::string path = files.Write("odd.toml", text), what = fmt::format("{} = {}", name, value);
  const std::vector<std::string> errors = ErrorsOf(path);
  if (errors.empty()) try {
      return ExpectSane(path, what);
    } catch (const UserError& error) {  // a rate of 0 means unknown, and this one is needed
      EXPECT_THAT(error.what(), HasSubstr(name + ": missing: the ranks send over this link")) << what;
      return;
    }
  EXPECT_EQ(errors.size(), 1) << what;
  EXPECT_THAT(errors[0], testing::MatchesRegex("odd.toml:[0-9]+: " + name + " = .*")) << what;
  EXPECT_TRUE(errors[0].find("(allowed: ") != errors[0].npos || errors[0].find("must rise") != errors[0].npos)
      << errors[0];
  EXPECT_THAT(errors[0], HasSubstr(allowed)) << what;
}

TEST(ClusterRanges, EveryNumberIsBounded) {
  for (const ClusterKey& key : ClusterSchema()) {
    const bool number =
        IsInteger(key) || IsCurve(key) || IsTiles(key) || std::holds_alternative<double& (*)(Cluster&)>(key.field);
    EXPECT_EQ(number, IsNumber(key) && std::isfinite(key.allowed.min)) << key.FullName();
  }
}

TEST(ClusterRanges, AnyValueIsRefusedOrMakesSaneTimes) {
  const ClusterFiles files;
  const std::map<std::string, std::string> real = RealKeys();
  ExpectSane(files.Write("real.toml", FileOf(real)), "real");
  for (const ClusterKey& key : ClusterSchema()) {
    if (!IsNumber(key)) continue;
    for (const char* number : kOddValues)
      for (const std::string& value : FormsOf(key, number)) {
        std::map<std::string, std::string> keys = real;
        keys[key.FullName()] = value;
        const bool plain = !IsCurve(key) && !IsTiles(key);
        ExpectRefusedOrSane(files, key.FullName(), value, FileOf(keys), plain ? AllowedText(key.allowed) : "");
      }
  }
}

/// All keys together, each at one end of its range: rates from the slowest to the fastest, and fixed times in the same
/// way.
TEST(ClusterRanges, TheirEndsTogetherMakeSaneTimes) {
  const ClusterFiles files;
  for (const bool fast : {false, true})
    for (const bool short_times : {false, true}) {
      std::map<std::string, std::string> keys = RealKeys();
      for (const ClusterKey& key : ClusterSchema()) {
        if (!IsNumber(key) || key.section == "cluster" || key.section == "interference" || key.name == "units")
          continue;
        const bool is_rate = key.allowed.min > 0;
        const double end = (is_rate ? fast : !short_times) ? key.allowed.max : key.allowed.min;
        const std::string number = IsInteger(key) ? ToToml(static_cast<int64_t>(end)) : ToToml(end);
        keys[key.FullName()] = FormsOf(key, number).back();
        if (IsCurve(key)) keys[key.FullName()] = FormsOf(key, number).front();
      }
      ExpectSane(files.Write("ends.toml", FileOf(keys)), fmt::format("fast {}, short times {}", fast, short_times));
    }
}

/// Measured rows of a kernel and a message of the world, as `calibrate` writes them.
TEST(ClusterRanges, AnyMeasuredRowIsRefusedOrMakesSaneTimes) {
  const ClusterFiles files;
  const Program& program = World().Of(0);
  const auto kernel = std::ranges::find(program.instructions, Lane::kCompute, &Instruction::lane);
  ASSERT_NE(kernel, program.instructions.end());
  const KernelKey key = KeyOf(LocalOpOf(*program.graph, program.graph->op((*kernel).op), program.mesh, {}), false);
  std::map<std::string, std::string> row = {{"us", "5.5"}, {"samples", "10"}, {"points", "[[1024, 5.5, 10]]"}};
  const auto text = [&](const std::map<std::string, std::string>& with) {
    return FileOf(RealKeys(), fmt::format("[[kernel]]\nop = \"{}\"\nvariant = {}\nsizes = {}\nus = {}\nsamples = {}\n"
                                          "[[collective]]\nop = \"send\"\nranks = 2\nnodes = 2\nranks_per_node = 1\n"
                                          "points = {}\n",
                                          key.kind, ToToml(key.variant), ToToml(key.sizes), with.at("us"),
                                          with.at("samples"), with.at("points")));
  };
  ExpectSane(files.Write("rows.toml", text(row)), "rows");
  for (const std::string& number : kOddValues) {
    for (const std::string& name : {"us", "samples"}) {
      auto odd = row;
      odd[name] = number;
      ExpectRefusedOrSane(files, "kernel." + std::string(name), number, text(odd), "");
    }
    for (const char* form :
         {"[[{}, 5.5, 10]]", "[[1024, {}, 10]]", "[[1024, 5.5, {}]]", "[[1, 5.5, 10], [2, {}, 1]]"}) {
      auto odd = row;
      odd["points"] = fmt::format(fmt::runtime(form), number);
      ExpectRefusedOrSane(files, "collective.points", odd["points"], text(odd), "");
    }
  }
  for (const char* extent : {"-1", "1e30", "2000000000000000", "9223372036854775807"})
    EXPECT_EQ(ErrorsOf(files.Write("sizes.toml", FileOf(RealKeys(), fmt::format(R"([[kernel]]
op = "add"
variant = "f32,f32->f32"
sizes = [{}]
us = 1
samples = 1
)",
                                                                                extent))))
                  .size(),
              1)
        << extent;
}

/// "device.bf16_tflops" -> its range in the table of doc/clusters.md.
TEST(ClusterRanges, TheManualHasThem) {
  std::ifstream page(InTree("doc/clusters.md"));
  std::map<std::string, std::string> told;
  for (std::string line; std::getline(page, line);) {
    const size_t bar = line.rfind(" | `"), end = line.rfind("` |");
    if (bar == line.npos || end <= bar) continue;
    for (size_t at = 0; (at = line.find('`', at)) < bar;) {
      const size_t stop = line.find('`', at + 1);
      told[line.substr(at + 1, stop - at - 1)] = line.substr(bar + 4, end - bar - 4);
      at = stop + 1;
    }
  }
  for (const ClusterKey& key : ClusterSchema())
    if (IsNumber(key)) EXPECT_EQ(told[key.FullName()], AllowedText(key.allowed)) << key.FullName();
}

}  // namespace
}  // namespace espalier
