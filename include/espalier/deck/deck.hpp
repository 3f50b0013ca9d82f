// The typed deck: one field per key of the schema table (src/deck/schema.cpp), named as the key. Defaults live in
// the table. A Deck that exists is valid: every relation that needs no files and no rank count has been checked. Closed
// choices are enums (choices.hpp), degrees and small counts are ints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/deck/choices.hpp"
#include "espalier/mesh/mesh.hpp"

namespace espalier {

/// "auto" of a key of [offload].
inline constexpr double kAutoShare = -1;

class OpTimes;        // ops/op_times.hpp
struct ScheduleFile;  // schedule/schedule_file.hpp

struct Deck {
  std::string name;  ///< file name of the deck without folder and ending

  struct Run {
    int64_t seed, steps;  ///< steps 0: unknown until the data determine `epochs`
    double epochs;        ///< passes over the data, in place of steps; 0: steps are given, or already known
    std::string dir;
    RunDevice device;
    Transport transport;
    int threads;
    bool deterministic;
    std::string gemm_plans;  ///< empty: none
    AttentionBackward attention_backward;
    bool deterministic_attention;
    int64_t outside_bytes;  ///< GPU memory that is kept free of the arena
    std::string time_limit;
    double stop_margin_s;    ///< < 0: the smaller of 90 s and 15 % of the limit
    double watchdog_s;       ///< 0: off
    double watchdog_slow_s;  ///< 0: by the size of the state
    double peak_tflops;      ///< peak of one rank's device; 0: known by its name, or measured
    std::string init_from;   ///< run, checkpoint or Hugging Face folder; empty: random weights
    std::string cluster;     ///< cluster file of device = "sleep"; empty: none
    std::string costs;       ///< cluster file whose times put ops in order; empty: rough times
    double dilation;         ///< device = "sleep" waits this multiple of the times in the cluster file
  } run;
  struct Model {
    Family family;
    int layers;
    int64_t dim, heads, kv_heads, head_dim, ffn_dim, vocab, seq_len;
    AttentionKind attention;
    int64_t q_rank, kv_rank;  ///< of mla: features of the latents of queries (0: none), and of keys and values
    int64_t v_dim;            ///< features of a head of values
    double score_factor;      ///< of attention's scores, beside 1 / sqrt(head_dim)
    double norm_eps;
    NormPlacement norm_placement;
    QkNorm qk_norm;
    bool qkv_bias, o_bias, mlp_bias;
    bool sinks;                 ///< a logit of each head in the denominator of attention
    int64_t sliding_window;     ///< 0: none
    int full_attention_layers;  ///< the first layers, without sliding_window
    int full_attention_every;   ///< nor has each so many-th layer; 0: only the first ones
    int64_t rope_dim;           ///< rotated columns of each head
    bool rope_adjacent;         ///< pairs of rotated columns are neighbours
    double rope_theta;
    RopeScaling rope_scaling;
    double rope_factor;
    int64_t rope_original_seq_len;
    double rope_low_freq_factor, rope_high_freq_factor, rope_beta_fast, rope_beta_slow;
    double rope_attention_factor;  ///< 0: by the formula of yarn
    bool rope_truncate;            ///< the ramp of yarn begins and ends at whole indices
    bool tie_embeddings;
    int mtp_layers;  ///< further layers after `layers`, which predict further tokens in training; like the last layer
    int AllLayers() const { return layers + mtp_layers; }
    double init_std;
    /// Mixture of experts: the feed-forward network of a layer is `count` small ones, `per_token` of which serve a
    /// token.
    struct Experts {
      int64_t count;  ///< 0: all layers are dense
      int64_t per_token, ffn_dim, shared_ffn_dim;
      bool shared_gate;  ///< of the shared network: the sigmoid of a logit of each token
      int first_layer,
          every;  ///< layer l (from 1) has experts if l - 1 >= first_layer, and every `every`-th from there
      RouterScores scores;
      bool normalize;
      double scale;
      int64_t groups, top_groups, group_best;
      bool bias;  ///< a bias of each expert, for the choice alone, that loads train
      double bias_rate;
      bool mlp_bias, router_bias;  ///< biases of the matmuls of experts, and of the router's logits
      double swiglu_limit;         ///< of gate and up in the form of SwiGLU that gpt-oss has; 0: SwiGLU
      double balance_loss, z_loss;
      ExpertRouting routing;
      double
          buffer;  ///< rows that a rank keeps of a layer, relative to balanced routing (src/passes/expert_passes.cpp)
    } experts;
  } model;
  struct Parallel {
    int pp, dp_replicate, dp_shard, cp, tp;  ///< dp_shard -1: all remaining ranks
    int ep;                                  ///< a factor of dp_shard cp tp
    int zero;
    ReduceFrequency reduce;
    Dtype reduce_dtype;
    int regather_group;  ///< ranks of dp_shard; 0: all
    bool sequence_parallel, loss_parallel;
    ContextMode context;
  } parallel;
  struct Pipeline {
    ScheduleKind schedule;
    int chunks;  ///< per stage
    std::vector<int64_t> split;
    std::string file;  ///< of the schedule kFile
    /// The schedule in it (costs/order.hpp reads it); null: another schedule, or the file is not read yet.
    std::shared_ptr<const ScheduleFile> of_file = {};
  } pipeline;
  struct Batch {
    int64_t global, micro;
    int64_t ramp_start, ramp_step;  ///< sequences; ramp_start 0: no ramp
    int64_t ramp_steps;             ///< optimizer steps with each size below global
  } batch;
  struct Precision {
    Dtype compute, moments;
    MatmulPrecision matmul;
    Fp8Scaling fp8_scaling;
    std::vector<std::string> bf16_matmuls;  ///< patterns of names of weights
  } precision;
  struct Recompute {
    RecomputeMode mode;
    std::vector<std::string> ops, layers;  ///< espalier/deck/recompute.hpp
    int64_t budget;                        ///< bytes of a rank's arena, for kAuto; 0: what is there
    Regather regather;
  } recompute;
  /// Shares are kAutoShare until a choice is made (tune/memory_choice.hpp).
  struct Offload {
    double optimizer;      ///< share of the state of the optimizer that is on the host
    double activations;    ///< share of what forward keeps for backward that waits there
    double parameters;     ///< share of the weights in the compute type that is there
    double gradients;      ///< share of the sums of gradients that is there
    std::string layers;    ///< in place of `activations`: the layers whose values wait there (deck/recompute.hpp)
    int64_t chunk_bytes;   ///< most of it that a copy moves
    int64_t device_bytes;  ///< most that the arena of a device may have; 0: what the device has
  } offload;
  struct Overlap {
    bool tensor, gradients;
    int tensor_strips;  ///< 1: none; 0: TensorStrips() chooses
    int prefetch;
    bool context, experts, interleave;
    int tp_ctas, cp_ctas, dp_ctas, pp_ctas;
  } overlap;
  struct Fusion {
    JoinMatmuls join_matmuls;
  } fusion;
  struct Optimizer {
    OptimizerName name;
    double lr, beta1, beta2, eps, weight_decay;
    bool decay_norms;
    double clip_norm;
    std::vector<std::string> groups;  ///< "PATTERN lr=X decay=Y"
    double muon_lr, muon_momentum;
    bool muon_nesterov;
    int muon_iterations;
    MuonScale muon_scale;
  } optimizer;
  struct Loss {
    double z_loss;
    double mtp_weight;  ///< of the mean loss of model.mtp_layers
    int64_t chunks;     ///< chunks of the rows of logits; 0: automatic
  } loss;
  struct Dropout {
    double embedding, residual, attention;
  } dropout;
  struct Lr {
    int64_t warmup_steps, stable_steps;
    Decay decay;
    int64_t decay_steps;
    double min_ratio;
  } lr;
  struct Data {
    DataFormat format;
    std::vector<std::string> paths;
    std::vector<double> weights;  ///< one per entry of paths; empty: paths are one long sequence
    std::vector<std::string> validation;
    std::vector<double> validation_weights;
    std::string tokenizer;     ///< tokenizer.json or tokenizer.model; empty: none
    std::string text_field;    ///< field of jsonl with the text
    std::string hdf5_dataset;  ///< dataset in hdf5 files
    std::string index_dir;     ///< folder of the indices of jsonl files; empty: the folder of each file
    int64_t end_token;         ///< ends a document; -1: none
    bool isolate_documents;
    std::string chat_template;  ///< a file, or "chatml"; empty: the tokenizer's own
    TrainOn train_on;
    bool shuffle;
    int64_t validate_every_steps, validate_sequences;
  } data;
  struct Checkpoint {
    int64_t every_steps;
    double every_s;
    bool at_start;
    int64_t keep;
    bool asynchronous;
    Restart restart;
    int64_t fallback;
    int64_t memory_steps;    ///< 0: no copies in memory
    std::string memory_dir;  ///< in the memory of each node
  } checkpoint;
  struct Guard {
    OnNonfinite on_nonfinite;
    int64_t max_skips, max_rollbacks;
    OnSpike on_spike;
    double spike_z;  ///< 0: off
    int64_t spike_window;
    OnCorruption on_corruption;
    int64_t hash_steps;       ///< 0: copies are compared by saves only
    int64_t recompute_steps;  ///< 0: ranks do not compare what they compute
  } guard;
  struct Report {
    int64_t every_steps;
    bool tensorboard;
    std::string trace;  ///< "10:12": steps whose instructions are traced; empty: none
    std::string costs;  ///< cluster file to which this run adds the times of its instructions; empty: none
  } report;

  /// The times in the file of run.costs (costs/order.hpp reads it); null: the key is empty, or the file is not read
  /// yet.
  std::shared_ptr<const OpTimes> times = {};
};

/// Whether a key of [offload] is "auto".
bool LeavesOffloadOpen(const Deck& deck);
/// Whether one is, or recompute.mode: what is kept where is chosen before programs are compiled.
bool LeavesMemoryOpen(const Deck& deck);
/// The traits of pipeline.schedule, or of the schedule in pipeline.file.
const ScheduleTraits& TraitsOf(const Deck::Pipeline& pipeline);

/// Whether the programs of a deck have ops whose order, or which recompute, follows times of ops.
bool FollowsTimes(const Deck& deck);

/// The mesh of a deck on `ranks` ranks; dp_shard = -1 is filled in. Throws UserError (kDeck) listing every broken
/// relation between degrees, ranks, model and batch, with the numbers.
Mesh ResolveMesh(const Deck& deck, int ranks);

/// Whether all relations hold that can be checked without files, on `ranks` ranks; dp_shard must be known. Throws
/// nothing: for searches.
bool IsValid(const Deck& deck, int ranks);

/// The value of parallel.reduce on this mesh: kStep or kMicrobatch. kAuto becomes kMicrobatch if gradients are sharded
/// (zero >= 2, and dp_shard or cp above 1).
ReduceFrequency ReduceOf(const Deck& deck, const Mesh& mesh);

/// Whether parameters are gathered for every layer and microbatch, not once per step: zero = 3 and recompute.regather.
bool GathersAgain(const Deck& deck, const Mesh& mesh);

/// How the sequences of a step are divided.
struct BatchShape {
  int64_t sequences = 0;  ///< per step, over all ranks: batch.global
  int64_t micro = 0;      ///< per microbatch and data-parallel rank: batch.micro
  int64_t rows = 0;       ///< per microbatch, over all data-parallel ranks; sequences is a multiple of it
  int64_t microbatches = 0;
  int64_t tokens = 0;  ///< per step, over all ranks
};

int64_t TokensPerStep(const Deck& deck);

/// The batch of a deck on a mesh.
BatchShape BatchOf(const Deck& deck, const Mesh& mesh);

/// Learning rate of step t = 1, 2, ... (linear warm-up, then cosine, linear or constant; doc/numerics.md).
double LearningRate(const Deck& deck, int64_t step);
/// As above, for the matrices that Muon trains.
double MuonLearningRate(const Deck& deck, int64_t step);

}  // namespace espalier
