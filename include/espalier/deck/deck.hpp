// The typed deck: one field per key of the schema table (src/deck/schema.cpp), named as the key. Defaults live in
// the table. A Deck that exists is valid: every relation that needs no files and no rank count has been checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/mesh/mesh.hpp"

namespace espalier {

struct Deck {
  std::string name;  ///< file name of the deck without folder and ending

  struct Run {
    int64_t seed, steps;
    std::string dir, device, transport;
    int64_t threads;
    bool deterministic;
    std::string product_plans;  ///< empty: none
    std::string time_limit;
    double stop_margin_s;    ///< < 0: the smaller of 90 s and 15 % of the limit
    double watchdog_s;       ///< 0: off
    double watchdog_slow_s;  ///< 0: by the size of the state
    double peak_tflops;      ///< of one rank's device; 0: known by its name, or measured
  } run;
  struct Model {
    std::string family;
    int64_t layers, dim, heads, kv_heads, ffn_dim, vocab, seq_len;
    double norm_eps, rope_theta;
    bool tie_embeddings;
    double init_std;
  } model;
  struct Parallel {
    int64_t pp, dp_replicate, dp_shard, cp, tp;  ///< dp_shard -1: what is left
    int64_t zero;
    std::string reduce;
    bool sequence_parallel, loss_parallel;
    std::string context;
  } parallel;
  struct Pipeline {
    std::string schedule;
    int64_t chunks;
    std::vector<int64_t> split;
  } pipeline;
  struct Batch {
    int64_t global, micro;
  } batch;
  struct Precision {
    std::string compute;
  } precision;
  struct Recompute {
    std::string mode, regather;
  } recompute;
  struct Overlap {
    bool tensor;
    int64_t prefetch;
  } overlap;
  struct Optimizer {
    std::string name;
    double lr, beta1, beta2, eps, weight_decay;
    bool decay_norms;
    double clip_norm;
  } optimizer;
  struct Lr {
    int64_t warmup_steps;
    std::string decay;
    int64_t decay_steps;
    double min_ratio;
  } lr;
  struct Data {
    std::string format;
    std::vector<std::string> paths, validation;
    bool shuffle;
    int64_t validate_every_steps, validate_sequences;
  } data;
  struct Checkpoint {
    int64_t every_steps;
    double every_s;
    bool at_start;
    int64_t keep;
    bool asynchronous;
    std::string restart;
    int64_t fallback;
  } checkpoint;
  struct Guard {
    std::string on_nonfinite;
    int64_t max_skips, max_rollbacks;
  } guard;
  struct Report {
    int64_t every_steps;
  } report;
};

/// The mesh of a deck on `ranks` ranks; dp_shard = -1 is filled in. Throws UserError (kDeck) listing every broken
/// relation between degrees, ranks, model and batch, with the numbers.
Mesh ResolveMesh(const Deck& deck, int ranks);

/// batch.global / (batch.micro * dp_replicate * dp_shard); checked whole by ResolveMesh.
int64_t MicrobatchCount(const Deck& deck, const Mesh& mesh);

/// Learning rate of step t = 1, 2, ... (linear warm-up, then cosine, linear or constant; doc/numerics.md).
double LearningRate(const Deck& deck, int64_t step);

}  // namespace espalier
