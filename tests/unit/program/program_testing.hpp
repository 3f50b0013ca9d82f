// Layouts, schedules, and the programs of all ranks of a small deck.
#pragma once

#include <gtest/gtest.h>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "test_decks.hpp"

namespace espalier {

constexpr const char* kLayouts[] = {"111", "211", "121", "112", "221", "212", "122", "222", "411"};

/// Overrides of a layout, and its ranks.
struct Case {
  std::vector<std::string> overrides;
  int ranks;
};

inline void PrintTo(const Case& c, std::ostream* out) {
  for (const std::string& text : c.overrides) *out << text << " ";
}

/// These layouts, the other family, and each kind of context parallelism.
inline std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const char* layout : kLayouts) cases.push_back({DegreesOf(layout), RanksOf(layout)});
  for (const char* layout : {"111", "112", "221"})
    for (const char* way : {"ring", "all_gather", "all_to_all"})
      for (int cp : {2, 4}) {
        Case c{DegreesOf(layout), RanksOf(layout) * cp};
        for (const std::string& more : {fmt::format("parallel.cp={}", cp), fmt::format("parallel.context={}", way),
                                        std::string("model.heads=8"), std::string("model.kv_heads=8")})
          c.overrides.push_back(more);
        if (cp == 4) c.overrides.push_back("precision.compute=bf16");
        cases.push_back(std::move(c));
      }
  for (const char* layout : {"222", "141", "114"}) {
    Case c{DegreesOf(layout), RanksOf(layout)};
    for (const char* more : {"model.family=gpt2", "model.kv_heads=4", "model.tie_embeddings=true"})
      c.overrides.push_back(more);
    cases.push_back(std::move(c));
  }
  return cases;
}

inline std::vector<Program> AllPrograms(const Compilation& c) {
  std::vector<Program> programs;
  for (int rank = 0; rank < c.mesh.Ranks(); ++rank) programs.push_back(MakeProgram(c, c.mesh.CoordinateOf(rank)));
  return programs;
}

inline void Check(const Mesh& mesh, const std::vector<Program>& programs) {
  CheckWorld(mesh, [&](int rank) -> const Program& { return programs[static_cast<size_t>(rank)]; });
}

inline std::string WhatCheckSays(const Mesh& mesh, const std::vector<Program>& programs) {
  try {
    Check(mesh, programs);
  } catch (const InvariantError& error) {
    return error.what();
  }
  return "";
}

/// Changes a program's list of instructions. Lists of an instruction that `edit` sets must live until it returns.
inline void Edit(Program& program, const std::function<void(std::vector<Instruction>&)>& edit) {
  std::vector<Instruction> list(program.instructions.begin(), program.instructions.end());
  edit(list);
  program.instructions = Instructions(list);
}
inline void ClearWaits(Program& program) {
  Edit(program, [](std::vector<Instruction>& list) {
    for (Instruction& i : list) i.waits = {};
  });
}
/// Exchanges the microbatches of two instructions.
inline void SwapMicrobatches(Program& program, size_t a, size_t b) {
  Edit(program, [&](std::vector<Instruction>& list) { std::swap(list[a].microbatch, list[b].microbatch); });
}
inline void Erase(Program& program, size_t instruction) {
  Edit(program,
       [&](std::vector<Instruction>& list) { list.erase(list.begin() + static_cast<std::ptrdiff_t>(instruction)); });
}

inline size_t FindInstruction(const Program& program, std::string_view kind, int nth = 0) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (program.graph->ops[static_cast<size_t>(program.instructions[i].op)].kind == OpKindOf(kind) && nth-- == 0)
      return i;
  ADD_FAILURE() << "no " << kind;
  return 0;
}

/// Settings of recompute, gathering, reduction and overlap besides the defaults.
inline const std::vector<std::vector<std::string>> kVariations = {
    {"recompute.mode=selective", "overlap.prefetch=2"},
    {"recompute.mode=full", "parallel.zero=3"},
    {"recompute.layers=[\"full: first 1\",\"norm+core_attention: every 2\"]", "recompute.ops=[\"mlp\",\"qkv\"]"},
    {"parallel.reduce=microbatch", "parallel.zero=2", "overlap.prefetch=0"},
    {"parallel.reduce=microbatch", "recompute.mode=full", "overlap.tensor=false"},
    {"parallel.zero=2", "overlap.gradients=false", "overlap.interleave=false"},
    {"overlap.tensor_strips=3", "overlap.interleave=true"},
    {"fusion.join_matmuls=always", "precision.compute=bf16"},
    {"fusion.join_matmuls=qkv", "recompute.mode=full", "parallel.zero=3"},
    {"fusion.join_matmuls=always", "parallel.reduce=microbatch", "parallel.zero=2"},
    {"fusion.join_matmuls=always", "recompute.mode=selective", "overlap.tensor_strips=2"},
    {"overlap.tensor_strips=2", "recompute.mode=full", "batch.micro=2"},
    {"offload.activations=all", "recompute.mode=selective"},
    {"offload.activations=0.5", "offload.optimizer=all", "overlap.interleave=true", "overlap.tensor_strips=2"},
    {"offload.optimizer=all", "offload.chunk_bytes=1024", "precision.compute=bf16"},
    {"offload.optimizer=0.6", "offload.chunk_bytes=3000", "parallel.zero=3", "optimizer.name=muon"},
    {"offload.parameters=all", "overlap.interleave=true", "recompute.mode=full"},
    {"offload.parameters=0.5", "offload.optimizer=all", "offload.activations=all", "parallel.zero=3",
     "precision.compute=bf16"},
    {"offload.gradients=all", "offload.parameters=all", "overlap.interleave=true"},
    {"offload.gradients=0.5", "parallel.reduce=microbatch", "parallel.zero=2", "fusion.join_matmuls=always"},
};

struct PipelineCase {
  const char* schedule;
  int chunks;
};

inline std::vector<std::string> PipelineDeck(const PipelineCase& pipeline, int stages, int microbatches,
                                             std::vector<std::string> more = {}) {
  more.insert(more.end(),
              {fmt::format("parallel.pp={}", stages), std::string("pipeline.schedule=") + pipeline.schedule,
               fmt::format("pipeline.chunks={}", pipeline.chunks), fmt::format("batch.global={}", microbatches),
               fmt::format("model.layers={}", stages * pipeline.chunks + 1)});
  return more;
}

constexpr PipelineCase kPipelines[] = {{"1f1b", 1},  {"gpipe", 1},          {"interleaved", 2}, {"interleaved", 3},
                                       {"zb-h1", 1}, {"zb-interleaved", 2}, {"zbv", 2},         {"dualpipev", 2}};

}  // namespace espalier
