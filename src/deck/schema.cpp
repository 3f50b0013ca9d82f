// The table of all keys: section, name, field, default, allowed values, one sentence. Adding a key is a field in
// deck.hpp, a row here, and `espalier doc-deck > doc/deck.md`.
#include "espalier/deck/schema.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "espalier/util/error.hpp"
#include "relations.hpp"

namespace espalier {
namespace {

constexpr double kMaxInt = 2147483647;  // counts fit 32 bits, as MPI and token ids require
constexpr double kMaxDegree = 65536;
constexpr double kMaxWatchdog = 1e6;  // seconds: 12 days

constexpr double kMaxFloat = std::numeric_limits<float>::max();  // kernels compute in fp32

Allowed Any() { return {}; }
Allowed From(double min) { return {.min = min}; }
/// 0, or what fp32 can hold without becoming infinite
Allowed Float() { return {.min = 0, .max = kMaxFloat}; }
Allowed PositiveFloat() { return {.min = kMinFloat, .max = kMaxFloat}; }
Allowed Between(double min, double max) { return {.min = min, .max = max}; }
constexpr double kMaxCtas = 64;            // NCCL's limit
constexpr double kMaxBudget = 1e15;        // bytes
constexpr double kMaxOutsideBytes = 1e12;  // more than any GPU has
Allowed Count() { return Between(1, kMaxInt); }
Allowed CountOrZero() { return Between(0, kMaxInt); }
Allowed Fraction() { return {.min = 0, .max = 0.9999999}; }  // the next larger fp32 is 1
Allowed ShareOfState() { return {.min = 0, .max = 1, .words = {{"none", 0}, {"all", 1}, {"auto", kAutoShare}}}; }
Allowed Paths() { return {.paths = true}; }
Allowed Path() { return {.path = true}; }

/// The names of a closed choice.
template <typename T>
Allowed OneOf() {
  return {.choices = ChoiceNames<T>()};
}

template <typename T>
void SetChoice(T& field, std::string_view name) {
  const std::optional<T> value = ParseChoice<T>(name);
  CHECK(value, "'{}' is no choice of the key", name);
  field = *value;
}

#define FIELD(member) \
  [](Deck & deck) -> auto& { return deck.member; }

/// The field of a closed choice.
#define CHOICE(member)                                                          \
  ChoiceField {                                                                 \
    [](const Deck& deck) { return DeckName(deck.member); },                     \
        [](Deck& deck, std::string_view name) { SetChoice(deck.member, name); } \
  }

const Derived kRunDir = {"\"runs/<deck name>\"", {}, [](const Deck& d) -> DeckValue {
                           // "...toml" leaves no name.
                           return d.name.find_first_not_of('.') == std::string::npos ? "" : "runs/" + d.name;
                         }};
const Derived kKvHeads = {"model.heads", {"model.heads"}, [](const Deck& d) -> DeckValue { return d.model.heads; }};
const Derived kHeadDim = {"model.dim / model.heads", {"model.dim", "model.heads"}, [](const Deck& d) -> DeckValue {
                            const int64_t heads = std::max<int64_t>(1, d.model.heads);
                            return d.model.dim % heads == 0 ? d.model.dim / heads : 1;  // 1: there is none
                          }};
const Derived kVDim = {
    "model.head_dim", {"model.head_dim"}, [](const Deck& d) -> DeckValue { return d.model.head_dim; }};
const Derived kRopeDim = {
    "model.head_dim", {"model.head_dim"}, [](const Deck& d) -> DeckValue { return d.model.head_dim; }};
const Derived kRampStep = {"batch.ramp_start", {"batch.ramp_start"}, [](const Deck& d) -> DeckValue {
                             return std::max<int64_t>(1, d.batch.ramp_start);
                           }};
const Derived kDecaySteps = {"run.steps - lr.warmup_steps - lr.stable_steps",
                             {"run.steps", "lr.warmup_steps", "lr.stable_steps"},
                             [](const Deck& d) -> DeckValue {
                               return std::max<int64_t>(1, d.run.steps - d.lr.warmup_steps - d.lr.stable_steps);
                             }};
/// With ZeRO-3, every microbatch would gather and reduce the few parameters of a pipeline stage.
const Derived kZero = {"3; with pp > 1: 1", {"parallel.pp"}, [](const Deck& d) -> DeckValue {
                         return int64_t{d.parallel.pp > 1 ? 1 : 3};
                       }};
const Derived kChunks = {"1; interleaved, zb-interleaved, zbv, dualpipev: 2",
                         {"pipeline.schedule"},
                         [](const Deck& d) -> DeckValue { return int64_t{TraitsOf(d.pipeline.schedule).min_chunks}; }};
/// True if there is communication to hide, and the cost in memory is small.
const Derived kInterleave = {"true with tp > 1 and interleaved or dualpipev, else false",
                             {"parallel.tp", "pipeline.schedule"},
                             [](const Deck& d) -> DeckValue {
                               const ScheduleKind kind = d.pipeline.schedule;
                               return d.parallel.tp > 1 &&
                                      (kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kDualPipeV);
                             }};
const Derived kValidateSequences = {
    "batch.global", {"batch.global"}, [](const Deck& d) -> DeckValue { return d.batch.global; }};

using Strings = std::vector<std::string>;
using Integers = std::vector<int64_t>;
using Numbers = std::vector<double>;

std::vector<DeckKey> Rows() {
  // clang-format off
  return {
    {"run", "seed", FIELD(run.seed), 1234, From(0),
     "Seed of the initial weights, of the order of samples and of dropout."},
    {"run", "steps", FIELD(run.steps), Required{"run.epochs"}, Count(),
     "Optimizer steps of the whole run, restarts included."},
    {"run", "epochs", FIELD(run.epochs), 0.0, {.min = 0, .max = kMaxInt},
     "In place of run.steps: passes over the samples of data.paths, such as 3 or 0.5. A run has as many whole steps as "
     "fit into them; the number is known once the data are open. 0: run.steps says how long the run is."},
    {"run", "dir", FIELD(run.dir), kRunDir, Path(),
     "Folder of metrics and checkpoints; relative to the working directory."},
    {"run", "device", CHOICE(run.device), "auto", OneOf<RunDevice>(),
     "Where kernels run; auto is cuda if every rank has a GPU of its own, else cpu. sleep waits in place of kernels "
     "and links, for the times of run.cluster, to measure a schedule; it trains nothing."},
    {"run", "transport", CHOICE(run.transport), "auto", OneOf<Transport>(),
     "What carries messages between ranks; auto is nccl if every rank has a GPU of its own, else mpi. Over mpi, "
     "messages of GPUs pass through the host."},
    {"run", "threads", FIELD(run.threads), 0, Between(0, 4096),
     "Threads per rank; 0: OMP_NUM_THREADS, else the rank's share of the cores that it may use (a core that k ranks "
     "may use counts 1/k)."},
    {"run", "deterministic", FIELD(run.deterministic), true, Any(),
     "false lets CUDA kernels give up bitwise reproducibility for speed; CPU kernels are always deterministic."},
    {"run", "gemm_plans", FIELD(run.gemm_plans), "", Path(),
     "File written by espalier calibrate, relative to the working directory: the fastest algorithm of each matmul on "
     "GPUs; empty: the library's first choice; auto: the first start measures them, for each kind of GPU and version "
     "of the library."},
    {"run", "attention_backward", CHOICE(run.attention_backward), "parts", OneOf<AttentionBackward>(),
     "How cuDNN's deterministic attention backward stores scores on GPUs: parts (at most 256 MiB at a time), "
     "large_parts (1 GiB), two_streams (two parts of 256 MiB at the same time) or ordered (none; needs cuDNN 9.25); or "
     "own (our own kernels compute it); auto: the first start measures them and takes the fastest that fits, for each "
     "kind of GPU and version of cuDNN."},
    {"run", "deterministic_attention", FIELD(run.deterministic_attention), true, Any(),
     "false lets attention's backward on GPUs add in any order, which is faster, while everything else repeats its "
     "bits (run.deterministic)."},
    {"run", "outside_bytes", FIELD(run.outside_bytes), 2000000000, Between(0, kMaxOutsideBytes),
     "Bytes of GPU memory that a rank keeps free of its arena: for the context, the kernels of libraries and NCCL's "
     "buffers. The end of metrics.jsonl has what they took."},
    {"run", "init_from", FIELD(run.init_from), "", Path(),
     "Run, checkpoint or Hugging Face folder, relative to the working directory, whose weights a new run starts from; "
     "empty: random weights."},
    {"run", "time_limit", FIELD(run.time_limit), "", Any(),
     "Stop with a checkpoint before this much time has passed since the start, in any of Slurm's forms (minutes, "
     "minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds) or as 90s, "
     "30m, "
     "1h, 2d; empty: no limit but Slurm's."},
    {"run", "stop_margin_s", FIELD(run.stop_margin_s), -1.0, From(-1),
     "Seconds kept free before the time limit, in addition to a step and a save; -1: the smaller of 90 and 15 % of "
     "the limit."},
    {"run", "watchdog_s", FIELD(run.watchdog_s), 60.0, Between(0, kMaxWatchdog),
     "The job is ended, and the rank and instruction that hang are named, after this many seconds without progress in "
     "a step, between steps or "
     "in a validation; at least 1; 0: off."},
    {"run", "watchdog_slow_s", FIELD(run.watchdog_slow_s), 0.0, Between(0, kMaxWatchdog),
     "The same for the start with its first step, for saving and loading, and for the end; at least run.watchdog_s; "
     "0: the larger of 600 s and ten "
     "times run.watchdog_s, plus 1 s per 100 MB of state."},
    {"run", "peak_tflops", FIELD(run.peak_tflops), 0.0, From(0),
     "Peak rate of one rank's device in TFLOP/s, for mfu; 0: of a GPU by its name, of a CPU none."},
    {"run", "cluster", FIELD(run.cluster), "", Path(),
     "Cluster file, relative to the working directory, whose times run.device = \"sleep\" waits for."},
    {"run", "costs", FIELD(run.costs), "", Path(),
     "Cluster file, relative to the working directory (inputs/clusters, or one that calibrate wrote), whose times "
     "decide in which order ops and messages that may overlap are issued; no result depends on it. Empty: rough times "
     "of GPUs."},
    {"run", "dilation", FIELD(run.dilation), 1.0, Between(1e-6, 1e9),
     "run.device = \"sleep\" waits so many times as long as run.cluster says, since clocks of a busy machine resolve "
     "only milliseconds."},

    {"model", "family", CHOICE(model.family), "llama", OneOf<Family>(),
     "Architecture, as Hugging Face defines it."},
    {"model", "layers", FIELD(model.layers), Required{}, Between(1, kMaxLayers),
     "Transformer layers."},
    {"model", "dim", FIELD(model.dim), Required{}, Count(),
     "Width of the residual stream."},
    {"model", "heads", FIELD(model.heads), Required{}, Count(),
     "Attention heads; must divide dim unless head_dim is set."},
    {"model", "kv_heads", FIELD(model.kv_heads), kKvHeads, Count(),
     "Heads of keys and values; must divide heads; for gpt2 equal to heads."},
    {"model", "head_dim", FIELD(model.head_dim), kHeadDim, Count(),
     "Width of an attention head of queries and keys; for llama even, since RoPE rotates pairs; for gpt2 dim / heads."},
    {"model", "attention", CHOICE(model.attention), "heads", OneOf<AttentionKind>(),
     "How queries, keys and values are made: heads: a projection of each; mla: multi-head latent attention "
     "(DeepSeek-V2 and V3), whose keys and values are projected up from kv_rank features, and of each head of queries "
     "and keys the "
     "last rope_dim columns are rotated, which all heads of keys share."},
    {"model", "q_rank", FIELD(model.q_rank), 0, CountOrZero(),
     "mla: features that queries are projected up from; 0: queries are projected from the residual stream at once "
     "(DeepSeek-V2-Lite, Moonlight)."},
    {"model", "kv_rank", FIELD(model.kv_rank), 0, CountOrZero(),
     "mla: features that keys and values are projected up from; at least 1."},
    {"model", "v_dim", FIELD(model.v_dim), kVDim, Count(),
     "Width of a head of values, and of what attention makes of it."},
    {"model", "score_factor", FIELD(model.score_factor), 1.0, PositiveFloat(),
     "Factor of the scores of attention, beside 1 / sqrt(head_dim) (DeepSeek's scaling with yarn)."},
    {"model", "ffn_dim", FIELD(model.ffn_dim), Required{}, Count(),
     "Inner width of the feed-forward network of dense layers. With experts in all layers it is only the "
     "intermediate_size of an export."},
    {"model", "vocab", FIELD(model.vocab), Required{}, Between(2, kMaxInt),
     "Number of different tokens; at least 256 for text."},
    {"model", "seq_len", FIELD(model.seq_len), Required{}, Between(2, kMaxInt),
     "Tokens per sequence."},
    {"model", "norm_eps", FIELD(model.norm_eps), 1e-5, PositiveFloat(),
     "Added to the mean square (llama) or variance (gpt2) in the norms."},
    {"model", "norm_placement", CHOICE(model.norm_placement), "pre", OneOf<NormPlacement>(),
     "Where a layer normalises: pre: the inputs of attention and feed-forward; post: their outputs, before they are "
     "added to the residual stream (OLMo 2)."},
    {"model", "qk_norm", CHOICE(model.qk_norm), "none", OneOf<QkNorm>(),
     "RMSNorm of queries and keys before RoPE: head: of each head by itself (Qwen3); full: of all heads together (OLMo "
     "2)."},
    {"model", "qkv_bias", FIELD(model.qkv_bias), false, Any(),
     "Biases of the q, k and v projections (Qwen2); gpt2 always has them."},
    {"model", "o_bias", FIELD(model.o_bias), false, Any(),
     "Bias of the output projection of attention; gpt2 always has it."},
    {"model", "mlp_bias", FIELD(model.mlp_bias), false, Any(),
     "Biases of the matmuls of the feed-forward network; gpt2 always has them."},
    {"model", "sinks", FIELD(model.sinks), false, Any(),
     "A learned logit of each query head in the denominator of its softmax, as of a key without a value (gpt-oss)."},
    {"model", "sliding_window", FIELD(model.sliding_window), 0, CountOrZero(),
     "Tokens that a query sees, itself included, as in Hugging Face's Mistral and Qwen2; 0: all before it."},
    {"model", "full_attention_layers", FIELD(model.full_attention_layers), 0, Between(0, kMaxLayers),
     "The first so many layers see all tokens in spite of model.sliding_window (Qwen2's max_window_layers)."},
    {"model", "full_attention_every", FIELD(model.full_attention_every), 0, Between(0, kMaxLayers),
     "Each so many-th layer sees all tokens in spite of model.sliding_window: 2: layers 2, 4, .. (gpt-oss), counted "
     "from 1; 0: none."},
    {"model", "rope_dim", FIELD(model.rope_dim), kRopeDim, Count(),
     "Columns of each head that RoPE rotates, from the first; the others stay (GLM-4.5 rotates half of them). Even. "
     "With mla the last ones, and fewer than head_dim."},
    {"model", "rope_adjacent", FIELD(model.rope_adjacent), false, Any(),
     "RoPE rotates pairs of neighbouring columns (DeepSeek), not of column i and i + rope_dim / 2."},
    {"model", "rope_theta", FIELD(model.rope_theta), 500000.0, PositiveFloat(),
     "Base of the RoPE frequencies; no effect for gpt2, whose positions are learned."},
    {"model", "rope_scaling", CHOICE(model.rope_scaling), "none", OneOf<RopeScaling>(),
     "How RoPE frequencies are stretched to longer sequences: linear: all by rope_factor; llama3: the low ones, as in "
     "Llama 3.1; yarn: Peng et al. 2023."},
    {"model", "rope_factor", FIELD(model.rope_factor), 1.0, PositiveFloat(),
     "How many times longer than before scaling sequences become; at least 1."},
    {"model", "rope_original_seq_len", FIELD(model.rope_original_seq_len), 0, CountOrZero(),
     "Sequence length before scaling; llama3 and yarn need it."},
    {"model", "rope_low_freq_factor", FIELD(model.rope_low_freq_factor), 1.0, PositiveFloat(),
     "llama3: frequencies with fewer turns than this in rope_original_seq_len are divided by rope_factor."},
    {"model", "rope_high_freq_factor", FIELD(model.rope_high_freq_factor), 4.0, PositiveFloat(),
     "llama3: frequencies with more turns than this in rope_original_seq_len stay."},
    {"model", "rope_beta_fast", FIELD(model.rope_beta_fast), 32.0, PositiveFloat(),
     "yarn: frequencies with more turns than this in rope_original_seq_len stay."},
    {"model", "rope_beta_slow", FIELD(model.rope_beta_slow), 1.0, PositiveFloat(),
     "yarn: frequencies with fewer turns than this in rope_original_seq_len are divided by rope_factor."},
    {"model", "rope_attention_factor", FIELD(model.rope_attention_factor), 0.0, Float(),
     "yarn: factor of cosines and sines; 0: 0.1 ln(rope_factor) + 1."},
    {"model", "rope_truncate", FIELD(model.rope_truncate), true, Any(),
     "yarn: the frequencies between rope_beta_fast and rope_beta_slow begin and end at whole indices; gpt-oss: false."},
    {"model", "tie_embeddings", FIELD(model.tie_embeddings), false, Any(),
     "The output head shares the weights of the embedding."},
    {"model", "mtp_layers", FIELD(model.mtp_layers), 0, Between(0, 16),
     "Further layers for multi-token prediction (DeepSeek-V3): layer k predicts the token k + 1 places ahead, in "
     "training alone. They are like the last layer, and run with the head."},
    {"model", "init_std", FIELD(model.init_std), 0.02, Float(),
     "Standard deviation of the initial weights; o_proj and down_proj (gpt2: c_proj) get it divided by sqrt(2 "
     "layers)."},

    {"experts", "count", FIELD(model.experts.count), 0, Between(0, 65536),
     "Experts of a layer; 0: all layers have a dense feed-forward network."},
    {"experts", "per_token", FIELD(model.experts.per_token), 1, Between(1, 65536),
     "Experts that serve a token: those with the highest scores; of equal ones the lower number."},
    {"experts", "ffn_dim", FIELD(model.experts.ffn_dim), 0, CountOrZero(),
     "Inner width of one expert; at least 1 with experts.count > 0."},
    {"experts", "shared_ffn_dim", FIELD(model.experts.shared_ffn_dim), 0, CountOrZero(),
     "Inner width of a dense network beside the experts, which serves every token (DeepSeek's shared experts, all "
     "together); 0: none."},
    {"experts", "shared_gate", FIELD(model.experts.shared_gate), false, Any(),
     "What the shared network makes of a token is multiplied by the sigmoid of a logit of the token (Qwen2-MoE)."},
    {"experts", "first_layer", FIELD(model.experts.first_layer), 0, Between(0, kMaxLayers),
     "Number of dense layers before the first layer with experts; they have model.ffn_dim."},
    {"experts", "every", FIELD(model.experts.every), 1, Between(1, kMaxLayers),
     "From there on, each so many-th layer has experts: 1: all, 2: every second."},
    {"experts", "scores", CHOICE(model.experts.scores), "softmax", OneOf<RouterScores>(),
     "Scores of the experts, from the router's logits, in fp32: softmax of all (Mixtral, Qwen, OLMoE), or sigmoid of "
     "each (DeepSeek-V3)."},
    {"experts", "normalize", FIELD(model.experts.normalize), true, Any(),
     "The chosen scores of a token are divided by their sum, so that its weights sum to experts.scale."},
    {"experts", "scale", FIELD(model.experts.scale), 1.0, PositiveFloat(),
     "Factor of the weights (DeepSeek's routed_scaling_factor)."},
    {"experts", "groups", FIELD(model.experts.groups), 1, Between(1, 64),
     "Groups of adjacent experts, of one size; a token's experts are in experts.top_groups of them (DeepSeek-V3)."},
    {"experts", "top_groups", FIELD(model.experts.top_groups), 1, Between(1, 64),
     "A token chooses from so many groups, those in which the highest scores have the largest sums."},
    {"experts", "group_best", FIELD(model.experts.group_best), 2, Between(1, 2),
     "How many of the highest scores of a group are added up for that: 2 (DeepSeek-V3), or 1 (DeepSeek-V2)."},
    {"experts", "bias", FIELD(model.experts.bias), false, Any(),
     "A bias of each expert is added to its score, for the choice alone (DeepSeek-V3's e_score_correction_bias). No "
     "gradient trains it."},
    {"experts", "bias_rate", FIELD(model.experts.bias_rate), 0.0, Float(),
     "After each step the bias of an expert rises by so much if it was chosen less often than the mean, and falls if "
     "more often; 0: biases stay."},
    {"experts", "mlp_bias", FIELD(model.experts.mlp_bias), false, Any(),
     "Biases of the gate, up and down projections of each expert (gpt-oss); not of the shared network."},
    {"experts", "router_bias", FIELD(model.experts.router_bias), false, Any(),
     "A bias of each logit of the router, which gradients train (gpt-oss)."},
    {"experts", "swiglu_limit", FIELD(model.experts.swiglu_limit), 0.0, Float(),
     "Above 0: experts compute (up + 1) gate sigmoid(1.702 gate) from gate, at most this, and up, within plus and "
     "minus this (gpt-oss: 7); 0: SwiGLU. The shared network has SwiGLU."},
    {"experts", "balance_loss", FIELD(model.experts.balance_loss), 0.0, Float(),
     "Factor of the balance loss of each layer, which is 1 where all experts are chosen equally often in a sequence "
     "(DeepSeek-V3, eq. 17). Added to what is differentiated; a metric of its own."},
    {"experts", "z_loss", FIELD(model.experts.z_loss), 0.0, Float(),
     "Factor of the router's z-loss: log(Z)^2 of each token and layer, Z the denominator of the softmax of its logits "
     "(Zoph et al. 2022). Added to what is differentiated; a metric of its own."},
    {"experts", "buffer", FIELD(model.experts.buffer), 1.5, {.min = 0.125, .max = 65536},
     "Rows of tokens that a rank computes at once and keeps for backward in a layer, relative to those of balanced "
     "routing. Where routing gives it more, it computes the others in further passes, in backward once more. No token "
     "is dropped, and memory does not depend on the routing."},
    {"experts", "routing", CHOICE(model.experts.routing), "learned", OneOf<ExpertRouting>(),
     "Who chooses the experts of a token. learned: the router. balanced: its position, so that all experts serve "
     "equally many tokens (the token at position p has the per_token experts from p per_token on, modulo count); to "
     "measure speed, and to compare with times that were published so. What is trained is of no use."},

    {"parallel", "pp", FIELD(parallel.pp), 1, Between(1, kMaxDegree),
     "Pipeline stages."},
    {"parallel", "dp_replicate", FIELD(parallel.dp_replicate), 1, Between(1, kMaxDegree),
     "Data-parallel groups that hold the same parameters."},
    {"parallel", "dp_shard", FIELD(parallel.dp_shard), -1, Between(-1, kMaxDegree),
     "Data-parallel ranks that shard the parameters; -1: all remaining ranks; 0 is not allowed."},
    {"parallel", "cp", FIELD(parallel.cp), 1, Between(1, kMaxDegree),
     "Context-parallel ranks; each has two of the 2 cp chunks of every sequence, an early and a late one; 2 cp must "
     "divide seq_len."},
    {"parallel", "tp", FIELD(parallel.tp), 1, Between(1, kMaxDegree),
     "Tensor-parallel ranks; must divide heads, and divide kv_heads or be a multiple of it."},
    {"parallel", "ep", FIELD(parallel.ep), 1, Between(1, kMaxDegree),
     "Ranks that share the experts of a layer: each has experts.count / ep of them, and serves the tokens of all. A "
     "factor of dp_shard * cp * tp: tp if that divides it, then cp if that divides the rest, then a divisor of "
     "dp_shard."},
    {"parallel", "zero", FIELD(parallel.zero), kZero, Between(1, 3),
     "What dp_shard and cp shard: 1 optimizer state; 2 gradients too; 3 parameters too, which are gathered for every "
     "layer and microbatch."},
    {"parallel", "reduce", CHOICE(parallel.reduce), "auto", OneOf<ReduceFrequency>(),
     "When gradients are reduced: step: once, after the last microbatch, and until then they are whole; microbatch: "
     "after each, so that with zero >= 2 they are sharded; auto: microbatch if zero >= 2 shards them, else step. zero "
     "= 2 excludes step; with zero = 3 it shards parameters only."},
    {"parallel", "reduce_dtype", CHOICE(parallel.reduce_dtype), "fp32", OneOf<Dtype>(),
     "Type in which gradients are sent for their reduction over dp_replicate, dp_shard and cp. bf16 halves the bytes: "
     "each rank rounds its gradients, they are added in fp32, and the sum is rounded. Sums over microbatches, losses "
     "and norms stay fp32."},
    {"parallel", "regather_group", FIELD(parallel.regather_group), 0, Between(0, kMaxDegree),
     "With zero = 3: how many neighbouring ranks of dp_shard, for example those of a node, keep all parameters between "
     "them during a step. Each group gathers what others have once per step; the gathers of every layer and microbatch "
     "stay within the group. Must divide dp_shard; 0: no groups, all gathers are over all ranks."},
    {"parallel", "sequence_parallel", FIELD(parallel.sequence_parallel), true, Any(),
     "Between their matmuls, tp ranks shard activations on the sequence, in unequal shards if tp does not divide "
     "seq_len."},
    {"parallel", "loss_parallel", FIELD(parallel.loss_parallel), true, Any(),
     "tp ranks shard the logits on the vocabulary; no rank holds all of them."},
    {"parallel", "context", CHOICE(parallel.context), "ring", OneOf<ContextMode>(),
     "How attention gets the keys of other cp ranks. ring: they travel from rank to rank, each hop overlapped with "
     "attention; all_gather: "
     "all at once; all_to_all: each rank gets whole sequences of fewer heads (cp * tp must divide heads and "
     "kv_heads). No effect if cp = 1."},

    {"pipeline", "schedule", CHOICE(pipeline.schedule), "1f1b", OneOf<ScheduleKind>(),
     "Order of forward and backward microbatches on the stages."},
    {"pipeline", "chunks", FIELD(pipeline.chunks), kChunks, Between(1, 1024),
     "Model chunks per stage: at least 2 for interleaved and zb-interleaved, 2 for zbv and dualpipev, as many as a "
     "line has for file, else 1."},
    {"pipeline", "split", FIELD(pipeline.split), Integers{}, CountOrZero(),
     "Layers of each chunk, in order; empty: balanced by cost. The first chunk also has the embedding, the last one "
     "the head and the layers of mtp_layers; these two may have 0 other layers."},
    {"pipeline", "file", FIELD(pipeline.file), "", Path(),
     "With schedule = \"file\": CSV with a line for each stage, as PyTorch's pipelining and espalier plan --schedule "
     "write it (doc/layouts.md). It decides which chunk is on which stage, and the order; pp, chunks and the number of "
     "microbatches must be those of the file."},

    {"batch", "global", FIELD(batch.global), Required{}, Count(),
     "Sequences per step, over all ranks."},
    {"batch", "micro", FIELD(batch.micro), Required{}, Count(),
     "Sequences per microbatch and data-parallel rank; "
     "micro * dp_replicate * dp_shard must divide global; the quotient is the number of microbatches (gradient "
     "accumulation)."},
    {"batch", "ramp_start", FIELD(batch.ramp_start), 0, CountOrZero(),
     "Sequences of the first steps, which grow by ramp_step to global; 0: all steps have global."},
    {"batch", "ramp_step", FIELD(batch.ramp_step), kRampStep, Count(),
     "Sequences by which a step grows at a time."},
    {"batch", "ramp_steps", FIELD(batch.ramp_steps), 100, Count(),
     "Optimizer steps with each size below global."},

    {"precision", "compute", CHOICE(precision.compute), "bf16", OneOf<Dtype>(),
     "Type of activations and of the weights in matmuls; master weights, gradients and their sums are fp32, the "
     "optimizer's moments of type moments."},
    {"precision", "moments", CHOICE(precision.moments), "fp32", OneOf<Dtype>(),
     "Type in which the optimizer's moments are kept between steps. bf16 halves their memory: updates compute in fp32 "
     "and round the result stochastically (doc/numerics.md)."},
    {"precision", "matmul", CHOICE(precision.matmul), "compute", OneOf<MatmulPrecision>(),
     "fp8 rounds both operands of the matmuls of weights: activations and weights to e4m3, gradients to e5m2 (e4m3 "
     "with fp8_scaling = \"mx\"). Results and all else stay of type compute, which must be bf16. GPUs need compute "
     "capability 8.9, as H100 has; CPUs compute the same numbers, more slowly."},
    {"precision", "fp8_scaling", CHOICE(precision.fp8_scaling), "tensor", OneOf<Fp8Scaling>(),
     "What has a scale of its own in fp8: tensor: each operand of a matmul on each rank; row: each row of it, along "
     "which it is contracted (GPUs: compute capability 9.0); mx: each 32 elements of such a row (MXFP8; GPUs: compute "
     "capability 10.0 or later). Rows of experts always have one each, and each expert's weight its own; mx is as row "
     "there."},
    {"precision", "bf16_matmuls", FIELD(precision.bf16_matmuls), Strings{"lm_head.weight"}, Any(),
     "Weights whose matmuls stay in bf16 with matmul = \"fp8\": patterns of their names. * and ? stand for any "
     "characters and for one, dots included; lm_head.weight is the head, tied or not."},

    {"recompute", "mode", CHOICE(recompute.mode), "none", OneOf<RecomputeMode>(),
     "Activation checkpointing: what is computed again in backward instead of kept. attention: the inputs of attention "
     "and what only they need, with mla from the latents on; selective: norms and activation functions too; full: "
     "everything in a layer except its input; auto: per layer what takes the least time and fits recompute.budget."},
    {"recompute", "ops", FIELD(recompute.ops), Strings{}, OneOf<RecomputeOp>(),
     "Ops that are computed again besides what mode says: norm; qkv: what makes queries, keys and values; "
     "core_attention: attention itself; mlp: the matmuls before an activation function; activation; and of experts: "
     "router, rows (the tokens of each expert) and experts (their matmuls before the activation function)."},
    {"recompute", "layers", FIELD(recompute.layers), Strings{}, Any(),
     "Rules \"WHAT: LAYERS\" in place of mode and ops for some layers; the first that names a layer holds. WHAT: a "
     "mode, ops, or both, joined by +. LAYERS: first N or every N (each N-th) of the layers of each pipeline stage, or "
     "layers of the model from 0, such as 0-3, 8."},
    {"recompute", "budget", FIELD(recompute.budget), 0, Between(0, kMaxBudget),
     "Bytes of a rank that mode = \"auto\" and keys of [offload] that are \"auto\" may plan: its peak is at most this. "
     "0: what a rank has when a run starts, or what the device of a cluster file has, less what it reserves."},
    {"recompute", "regather", CHOICE(recompute.regather), "auto", OneOf<Regather>(),
     "When zero = 3 gathers parameters: auto and always: for the forward and again for the backward of every layer and "
     "microbatch; never: once per step, which takes the memory of zero = 2."},

    {"offload", "optimizer", FIELD(offload.optimizer), 0.0, ShareOfState(),
     "Share of the optimizer's state that is kept in the memory of the host: moments, and fp32 masters of weights that "
     "are computed in another type. It passes through the device during the update, in chunks; no bit changes. auto, "
     "here and below: the share with which the step is shortest of those that fit (recompute.budget, device_bytes)."},
    {"offload", "activations", FIELD(offload.activations), 0.0, ShareOfState(),
     "Share of what forward keeps for backward that waits in the memory of the host meanwhile: that of the layers of a "
     "chunk with which forward begins. The last layer of each chunk keeps its own. No bit changes. auto: chooses "
     "layers."},
    {"offload", "layers", FIELD(offload.layers), "", Any(),
     "Layers whose activations wait on the host, in place of a share: first N or every N (each N-th) of the layers of "
     "each pipeline stage, or layers of the model from 0, such as 0-3, 8."},
    {"offload", "parameters", FIELD(offload.parameters), 0.0, ShareOfState(),
     "Share of the weights that is kept in the memory of the host, in the type in which they are computed: that of "
     "whole layers, spread over each chunk. They come in for the forward of a layer and again for its backward, a "
     "layer before, and the update writes them in chunks. No bit changes."},
    {"offload", "gradients", FIELD(offload.gradients), 0.0, ShareOfState(),
     "Share of the sums of gradients that is kept in the memory of the host: that of whole layers, spread over each "
     "chunk. They come in for the backward of a layer and leave after it, in every microbatch. No bit changes."},
    {"offload", "chunk_bytes", FIELD(offload.chunk_bytes), 67108864, Between(1024, 1e12),
     "Bytes of state that one copy to or from the host moves, at most; the device has memory for three such chunks."},
    {"offload", "device_bytes", FIELD(offload.device_bytes), 0, Between(0, 1e15),
     "Bytes that the arena of a device may have, to plan and run as on a smaller one; 0: as many as the device has."},

    {"overlap", "tensor", FIELD(overlap.tensor), true, Any(),
     "Overlap backward communication of tp with weight-gradient matmuls."},
    {"overlap", "tensor_strips", FIELD(overlap.tensor_strips), 1, CountOrZero(),
     "Strips of rows into which the ops between two attentions are split, so that tp communication of forward and "
     "backward overlaps with their matmuls; 1: not split; 0: 2 if batch.micro is at least 2, else 1, or, with "
     "run.costs where no sum depends on sizes (on CPUs, or with run.deterministic = false), of 1 to 4 what makes each "
     "such part fastest."},
    {"overlap", "prefetch", FIELD(overlap.prefetch), 1, CountOrZero(),
     "How many layers before their use sharded parameters are gathered, those of a job's first layers in the job "
     "before; 0: at their use."},
    {"overlap", "gradients", FIELD(overlap.gradients), true, Any(),
     "Reduce the gradients of a layer as soon as the last microbatch has added to them, while backward goes on; after "
     "each microbatch (parallel.reduce), add the last of them during the next one."},
    {"overlap", "context", FIELD(overlap.context), true, Any(),
     "Issue cp communication before the matmuls between two attentions that do not need it, so that it overlaps with "
     "them; only where this makes them faster by the times of run.costs, or by rough "
     "ones."},
    {"overlap", "experts", FIELD(overlap.experts), true, Any(),
     "Overlap communication of ranks that share experts with compute that does not need it: the router, a shared "
     "network, and weight gradients."},
    {"overlap", "interleave", FIELD(overlap.interleave), kInterleave, Any(),
     "In the steady state of 1f1b, interleaved and dualpipev, interleave the forward of one microbatch with the "
     "backward of another, so that the messages of one overlap with the matmuls of the other. 1f1b then keeps the "
     "activations of up to twice as many microbatches, interleaved those of one more chunk."},
    {"overlap", "tp_ctas", FIELD(overlap.tp_ctas), 16, Between(1, kMaxCtas),
     "Thread blocks that messages of tp have on a GPU at most (NCCL's maxCTAs). Kernels do without as many "
     "multiprocessors meanwhile, so all four keys together should leave most of them."},
    {"overlap", "cp_ctas", FIELD(overlap.cp_ctas), 8, Between(1, kMaxCtas),
     "The same for cp."},
    {"overlap", "dp_ctas", FIELD(overlap.dp_ctas), 8, Between(1, kMaxCtas),
     "The same for dp."},
    {"overlap", "pp_ctas", FIELD(overlap.pp_ctas), 4, Between(1, kMaxCtas),
     "The same for each direction of a message between stages."},

    {"fusion", "join_matmuls", CHOICE(fusion.join_matmuls), "never", OneOf<JoinMatmuls>(),
     "Compute matmuls of one input as one: q, k and v where attention reads them as they are or rotated (qkv), and "
     "gate and up of an MLP, too (always). Sums are grouped differently, so bits differ."},

    {"optimizer", "name", CHOICE(optimizer.name), "adamw", OneOf<OptimizerName>(),
     "Optimizer, as PyTorch defines it."},
    {"optimizer", "lr", FIELD(optimizer.lr), Required{}, Float(),
     "Highest learning rate."},
    {"optimizer", "beta1", FIELD(optimizer.beta1), 0.9, Fraction(),
     "Decay of the mean gradient."},
    {"optimizer", "beta2", FIELD(optimizer.beta2), 0.95, Fraction(),
     "Decay of the mean squared gradient."},
    {"optimizer", "eps", FIELD(optimizer.eps), 1e-8, PositiveFloat(),
     "Added to the root of the mean squared gradient."},
    {"optimizer", "weight_decay", FIELD(optimizer.weight_decay), 0.1, Float(),
     "Decoupled weight decay of matrices and tables; vectors, also those of each expert, have none."},
    {"optimizer", "decay_norms", FIELD(optimizer.decay_norms), false, Any(),
     "Apply weight decay to vectors (norms, biases) too."},
    {"optimizer", "clip_norm", FIELD(optimizer.clip_norm), 1.0, Float(),
     "Gradients with a larger global norm are scaled down to it; 0: off."},
    {"optimizer", "groups", FIELD(optimizer.groups), Strings{}, Any(),
     "Parameters with other settings: \"PATTERN lr=X decay=Y\", of which lr or decay may be missing: lr multiplies the "
     "rate, decay is the weight decay of all of them, vectors too. The first pattern that matches a name counts; * and "
     "? stand for any characters and for one, dots included."},
    {"optimizer", "muon_lr", FIELD(optimizer.muon_lr), 0.02, Float(),
     "Highest learning rate of the matrices that Muon trains; embeddings, head and vectors have AdamW and lr."},
    {"optimizer", "muon_momentum", FIELD(optimizer.muon_momentum), 0.95, Fraction(),
     "Decay of Muon's mean gradient, the momentum."},
    {"optimizer", "muon_nesterov", FIELD(optimizer.muon_nesterov), true, Any(),
     "Muon moves along the gradient, drawn to the momentum by muon_momentum (Nesterov); false: along the momentum."},
    {"optimizer", "muon_iterations", FIELD(optimizer.muon_iterations), 5, Between(1, 20),
     "Newton-Schulz iterations that make the update of a matrix orthogonal."},
    {"optimizer", "muon_scale", CHOICE(optimizer.muon_scale), "match_adamw", OneOf<MuonScale>(),
     "Factor of the orthogonal update of an m x n matrix: match_adamw: 0.2 sqrt(max(m, n)), so that one lr suits both "
     "(Liu et al. 2025); spectral: sqrt(max(1, m / n)) (Jordan et al. 2024)."},

    {"loss", "z_loss", FIELD(loss.z_loss), 0.0, Float(),
     "Adds this times the squared log of the softmax denominator of every token to the loss that is differentiated "
     "(Chowdhery et al. 2022). The loss that is reported stays the cross-entropy; z_loss is a metric of its own."},

    {"loss", "mtp_weight", FIELD(loss.mtp_weight), 0.3, Float(),
     "Adds this times the mean loss of model.mtp_layers to the loss that is differentiated. The loss that is reported "
     "stays that of the next token; mtp_loss is a metric of its own."},
    {"loss", "chunks", FIELD(loss.chunks), 1, CountOrZero(),
     "Chunks of the rows (tokens) of a microbatch in which logits, loss and their gradients are computed, so that "
     "memory never holds all logits. 1: one; 0: automatic, as few as keep the logits of a chunk within 512 MiB, with "
     "2048 rows or more in each."},

    {"dropout", "embedding", FIELD(dropout.embedding), 0.0, Fraction(),
     "Share of the elements of the embedded tokens that are dropped in training; gpt2 only (embd_pdrop of Hugging "
     "Face)."},
    {"dropout", "residual", FIELD(dropout.residual), 0.0, Fraction(),
     "Share of the elements that attention and feed-forward add to the residual stream; gpt2 only (resid_pdrop)."},
    {"dropout", "attention", FIELD(dropout.attention), 0.0, Fraction(),
     "Share of the probabilities of attention (attn_pdrop of GPT-2, attention_dropout of the others). On GPUs the "
     "plain kernel computes it, many times slower than cuDNN."},

    {"lr", "warmup_steps", FIELD(lr.warmup_steps), 0, CountOrZero(),
     "Steps of linear warm-up to optimizer.lr."},
    {"lr", "stable_steps", FIELD(lr.stable_steps), 0, CountOrZero(),
     "Steps at optimizer.lr between warm-up and decay (warmup-stable-decay)."},
    {"lr", "decay", CHOICE(lr.decay), "cosine", OneOf<Decay>(),
     "Shape of the decay after warm-up and stable_steps: cosine, linear and one_minus_sqrt reach min_ratio in "
     "decay_steps; inverse_sqrt falls with the root of the step, not below min_ratio; constant stays."},
    {"lr", "decay_steps", FIELD(lr.decay_steps), kDecaySteps, Count(),
     "Steps from the end of warm-up and stable_steps to the lowest rate."},
    {"lr", "min_ratio", FIELD(lr.min_ratio), 0.1, Between(0, 1),
     "Lowest rate as a fraction of optimizer.lr."},

    {"data", "format", CHOICE(data.format), "text", OneOf<DataFormat>(),
     "text: bytes, or words of data.tokenizer; jsonl: the same, a document a line; chat: a "
     "conversation a line; tokens: made by espalier tokenize; "
     "megatron: .bin with .idx; llmc, llmq: token files of these; hdf5: a dataset; flat16, flat32: ids without a "
     "header; auto: each file as its content says (doc/data.md)."},
    {"data", "paths", FIELD(data.paths), Required{}, Paths(),
     "Training files or globs (** too); relative to the deck that names them, on the command line to the working "
     "directory."},
    {"data", "weights", FIELD(data.weights), Numbers{}, PositiveFloat(),
     "A blend: each entry of paths is a source of its own, and gives this share of the samples (weights are divided "
     "by their sum); empty: all paths together are one long sequence."},
    {"data", "validation", FIELD(data.validation), Strings{}, Paths(),
     "Validation files or globs."},
    {"data", "validation_weights", FIELD(data.validation_weights), Numbers{}, PositiveFloat(),
     "The same as weights for validation."},
    {"data", "tokenizer", FIELD(data.tokenizer), "", Path(),
     "Tokenizer of the data: tokenizer.json or tokenizer.model, relative to the working directory; text and jsonl are "
     "tokenized by it, and checkpoints keep it for sample; empty: a byte is a token."},
    {"data", "text_field", FIELD(data.text_field), "text", Any(),
     "Field of each line of jsonl that is the document."},
    {"data", "hdf5_dataset", FIELD(data.hdf5_dataset), "tokens", Any(),
     "Dataset of token ids in files of hdf5."},
    {"data", "index_dir", FIELD(data.index_dir), "", Path(),
     "Folder for the indices of jsonl files, relative to the working directory; empty: beside each file."},
    {"data", "end_token", FIELD(data.end_token), -1, Between(-1, kMaxInt),
     "Token that ends a document; -1: documents end where the format says so."},
    {"data", "isolate_documents", FIELD(data.isolate_documents), false, Any(),
     "Attention, learned positions and loss do not cross the documents of a sample."},
    {"data", "chat_template", FIELD(data.chat_template), "", Path(),
     "Template that makes text of a conversation: a file, relative to the working directory, or chatml; empty: that of "
     "the Hugging Face folder of data.tokenizer."},
    {"data", "train_on", CHOICE(data.train_on), "assistant", OneOf<TrainOn>(),
     "Targets in conversations: what the assistant says, with the end of its turns; or all tokens."},
    {"data", "shuffle", FIELD(data.shuffle), true, Any(),
     "Samples in a random order keyed by run.seed, a new one for each epoch; false: in the order of the files."},
    {"data", "validate_every_steps", FIELD(data.validate_every_steps), 0, CountOrZero(),
     "Steps between validations; 0: never."},
    {"data", "validate_sequences", FIELD(data.validate_sequences), kValidateSequences, Count(),
     "Sequences of one validation; a multiple of batch.global."},

    {"checkpoint", "every_steps", FIELD(checkpoint.every_steps), 0, CountOrZero(),
     "Steps between checkpoints; 0: only at the end."},
    {"checkpoint", "every_s", FIELD(checkpoint.every_s), 0.0, From(0),
     "Seconds between checkpoints, by the clock of rank 0; 0: only by steps."},
    {"checkpoint", "at_start", FIELD(checkpoint.at_start), false, Any(),
     "Also commit the initial weights, as step 0."},
    {"checkpoint", "keep", FIELD(checkpoint.keep), 3, Count(),
     "How many of the run's latest checkpoints stay on disk; at least 2 until the last step."},
    {"checkpoint", "asynchronous", FIELD(checkpoint.asynchronous), true, Any(),
     "Copy the state and write the copy while training continues; without memory for the copy, training waits."},
    {"checkpoint", "restart", CHOICE(checkpoint.restart), "auto", OneOf<Restart>(),
     "Continue from the latest checkpoint of run.dir: auto, if there is one."},
    {"checkpoint", "fallback", FIELD(checkpoint.fallback), 1, CountOrZero(),
     "How many damaged checkpoints a restart may skip."},
    {"checkpoint", "memory_steps", FIELD(checkpoint.memory_steps), 0, CountOrZero(),
     "Steps between copies of the state in the memory of this node and of a partner node, from which a start continues "
     "if they are newer than the checkpoints; 0: none."},
    {"checkpoint", "memory_dir", FIELD(checkpoint.memory_dir), "/dev/shm", Path(),
     "A directory in the memory of each node (a tmpfs), for memory_steps."},

    {"guard", "on_nonfinite", CHOICE(guard.on_nonfinite), "stop", OneOf<OnNonfinite>(),
     "After a step whose loss or gradient norm is not finite (its update is left out): stop; skip it and continue; or "
     "roll back to the last "
     "checkpoint and continue after the batch."},
    {"guard", "max_skips", FIELD(guard.max_skips), 10, Count(),
     "Skipped steps in a row, not finite or spikes; one more stops the run."},
    {"guard", "max_rollbacks", FIELD(guard.max_rollbacks), 3, Count(),
     "Rollbacks of one start of the run; one more stops it."},
    {"guard", "on_spike", CHOICE(guard.on_spike), "skip", OneOf<OnSpike>(),
     "After a step whose loss or gradient norm is a spike: warn and keep it; skip its update; roll back to the last "
     "checkpoint and continue after the batch; or stop."},
    {"guard", "spike_z", FIELD(guard.spike_z), 0.0, Float(),
     "A loss or gradient norm is a spike if it is more than this many standard deviations above its mean over the last "
     "spike_window accepted steps; 0: off."},
    {"guard", "spike_window", FIELD(guard.spike_window), 128, Between(2, 1e5),
     "Steps over which mean and deviation of loss and norm are taken; the guard waits until there are as many."},
    {"guard", "on_corruption", CHOICE(guard.on_corruption), "rollback", OneOf<OnCorruption>(),
     "When a save finds that ranks hold different copies of the same state, which is then not saved: roll back to the "
     "last checkpoint and repeat the steps since; or stop."},
    {"guard", "hash_steps", FIELD(guard.hash_steps), 0, CountOrZero(),
     "Steps between comparisons of the copies of the state that several ranks hold, besides those of saves; 0: saves "
     "only."},
    {"guard", "recompute_steps", FIELD(guard.recompute_steps), 0, CountOrZero(),
     "Steps between comparisons of what ranks compute: ranks that differ only along dp_replicate and dp_shard compute "
     "gradients of the same microbatch, whose bits must be equal; 0: never. It takes memory for whole gradients."},

    {"report", "every_steps", FIELD(report.every_steps), 1, Count(),
     "Steps between lines on the console; metrics.jsonl has every step."},
    {"report", "tensorboard", FIELD(report.tensorboard), false, Any(),
     "What metrics.jsonl has is also written to event files of TensorBoard, in the folder tensorboard of run.dir."},
    {"report", "trace", FIELD(report.trace), "", Any(),
     "Steps whose instructions are timed and drawn, first:last, such as 10:12, in the folder trace of run.dir; empty: "
     "none."},
    {"report", "costs", FIELD(report.costs), "", Path(),
     "Cluster file, relative to the working directory, to which the run adds the times of its instructions; empty: "
     "none."},
  };
  // clang-format on
}

#undef FIELD
#undef CHOICE

}  // namespace

const std::vector<DeckSection>& DeckSections() {
  static const std::vector<DeckSection> sections = {
      {"run", "the run as a whole"},
      {"model", "the transformer"},
      {"experts", "mixture of experts: sparse feed-forward networks"},
      {"parallel", "degrees of parallelism; their product is the number of ranks"},
      {"pipeline", "the pipeline schedule"},
      {"batch", "sequences per step and per microbatch"},
      {"precision", "number formats"},
      {"recompute", "activation checkpointing and parameters that are gathered again"},
      {"offload", "state that is kept in the memory of the host"},
      {"overlap", "communication that overlaps with compute"},
      {"fusion", "kernels that do the work of several"},
      {"optimizer", "AdamW and Muon"},
      {"loss", "what is added to the cross-entropy"},
      {"dropout", "what is dropped at random in training"},
      {"lr", "the learning rate over the steps"},
      {"data", "what is read"},
      {"checkpoint", "what is saved, and how a run continues"},
      {"guard", "what happens when numbers are not finite or jump"},
      {"report", "what is printed and recorded"},
  };
  return sections;
}

const std::vector<DeckKey>& DeckSchema() {
  static const std::vector<DeckKey> rows = Rows();
  return rows;
}

const DeckKey* FindDeckKey(std::string_view full_name) {
  for (const DeckKey& key : DeckSchema())
    if (key.FullName() == full_name) return &key;
  return nullptr;
}

}  // namespace espalier
