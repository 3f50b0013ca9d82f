// Output about a plan that the commands `plan` and `simulate` share.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "espalier/program/plan.hpp"

namespace espalier {

/// Lists of ranks are left out of JSON above this number.
inline constexpr int kMaxRanksListed = 1024;

/// "0-9" or "0-3,8-11", of ascending numbers.
std::string RangesText(const std::vector<int>& numbers);

/// "7.82 MB", "80.0 GB": three significant digits, decimal units, as the memory of GPUs is stated.
std::string DecimalBytes(int64_t bytes);

/// Host memory that a checkpoint's copy takes on the rank that writes most; 0 if nothing is copied.
int64_t LargestStaging(const Compilation& compilation);

/// The most bytes of the host's memory that copies of the state (checkpoint.memory_steps) take for a rank: two
/// generations of its own shard and of one that it keeps for another node. 0: there are none.
int64_t LargestMemoryCopies(const Compilation& compilation);

/// The reasons why GPUs use our own attention kernels; empty if cuDNN computes all.
std::set<std::string> ReasonsForPlainAttention(const WorldPlan& plan);

/// The degrees of the mesh by axis.
nlohmann::ordered_json MeshJson(const Mesh& mesh);

/// Layers, peak and bytes by class of every stage.
nlohmann::ordered_json StagesJson(const WorldPlan& plan);

/// Prints the line `order`, if any order follows times.
void PrintOrder(const Deck& deck);

/// Compiles the program of a step and prints what each pass changes in its graph.
void PrintPasses(const Deck& deck, int ranks);

/// "parameters 12.1 GB, gradients 8.04 GB, ...": the classes that have bytes, largest first.
std::string ClassesText(const ByMemoryClass<int64_t>& bytes);

}  // namespace espalier
