// Handwritten programs on many ranks, with values that every rank can compute for every other.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/mpi_communication.hpp"
#include "espalier/executor/cpu_executor.hpp"
#include "espalier/program/compile.hpp"

namespace espalier::test {

/// The world of this process; made by main().
MpiWorld& TheWorld();

/// Element `index` of tensor `tensor` in step `step` at the member `member` of a partial value (0 if it is not
/// partial): magnitudes vary widely, so that the order of additions shows.
double Content(int tensor, int64_t index, int member, int step);

/// Fills the local shard of a value. `member` distinguishes partial contributions.
void Fill(const Tensor& tensor, const Type& type, int id, int member, int step);

/// Number of elements that differ, bit by bit, from the in-order fp32 sum or maximum of `members` contributions.
int64_t CountWrong(const Tensor& tensor, const Type& type, int id, int members, Reduce how, int step);

/// A program of one rank, in the order of the calls; every value is persistent.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(const Mesh& mesh);

  const Coordinate& coordinate() const { return coordinate_; }
  int stage() const { return program_.stage; }

  /// Values are on `chunk`, which is on the stage of that number.
  int AddValue(const std::string& name, const std::string& type, int chunk = kAllChunks);
  /// Allocates memory on this rank.
  void Place(int value);
  /// Runs an op here; gives communication its exact workspace.
  void Run(Op op, Lane lane);
  /// An op of the graph that this rank does not run.
  int AddOp(Op op) { return graph_.AddOp(std::move(op)); }

  const Graph& graph() const { return graph_; }
  /// The program, with waits planned from memory.
  Program Take();

 private:
  Graph graph_;
  Program program_;
  Coordinate coordinate_;
  int64_t end_ = 0;
};

/// An op of one kind over a group.
Op GroupOp(OpKind kind, std::vector<int> inputs, std::vector<int> outputs, AxisSet axes);

/// The transport that a test is linked with: mpi_transport.cpp or nccl_transport.cpp. The options are for MPI.
std::unique_ptr<Communication> MakeCommunication(const Mesh& mesh, const std::vector<Channel>& channels,
                                                 MpiCommunicationOptions options);

/// A program with its arena, its communicators and its executor.
class Runner {
 public:
  Runner(Program program, Executor::KernelFinder find_kernel = nullptr, MpiCommunicationOptions options = {});

  Executor& executor() { return *executor_; }
  const Program& program() const { return program_; }
  /// Memory of a value.
  Tensor At(int value) const;
  const Type& TypeOf(int value) const { return program_.graph->values[static_cast<size_t>(value)].type; }

 private:
  Program program_;
  HostArena arena_;
  std::unique_ptr<Communication> communication_;
  std::unique_ptr<Executor> executor_;
};

/// Meshes of the world's size: each axis alone, and some combinations.
std::vector<Mesh> Meshes();

}  // namespace espalier::test
