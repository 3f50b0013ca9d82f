// A trained model on all ranks that computes the loss of each token.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/mpi_world.hpp"
#include "espalier/data/batch_loader.hpp"
#include "espalier/executor/device.hpp"
#include "espalier/program/compile.hpp"
#include "train/evaluating/rows.hpp"
#include "train/programs.hpp"

namespace espalier {

class TokenScorer {
 public:
  /// Compiles the forward, takes its memory and loads the weights of the checkpoint `dir`. Throws AgreedError:
  /// kDoesNotFit if a rank has too little memory, and the errors of Load. Collective.
  TokenScorer(const Deck& deck, const std::string& dir, World& world, MpiWorld* mpi, Device& device);

  /// Rows that are computed together.
  int64_t rows() const { return layout_.Global(); }
  const Compilation& compilation() const { return compilation_; }
  /// On rank 0: the loss of the target after each token of each row (padded to seq_len), if it counts. Collective: all
  /// ranks have the same rows, at most rows().
  std::vector<double> Losses(const std::vector<Row>& rows);

 private:
  /// Losses of this rank, by place in the result.
  struct Part {
    std::vector<int64_t> places;
    std::vector<double> losses;

    auto Fields() { return std::tie(places, losses); }
  };
  void MakeExecutor(MpiWorld* mpi, Device& device);
  Part OwnLosses() const;
  /// A result of a microbatch on this rank; empty if another stage has it.
  std::vector<float> Result(size_t index, int microbatch) const;

  World& world_;
  Compilation compilation_;
  Coordinate coordinate_{};
  Runnable runnable_;
  std::unique_ptr<Arena> arena_;
  BatchLayout layout_;
  int64_t seq_len_;
};

}  // namespace espalier
