// The table of all keys: section, name, field, default, what is allowed, one sentence. Adding a key is a field in
// deck.hpp, a row here, and `espalier doc-deck > doc/deck.md`.
#include "espalier/deck/schema.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "espalier/util/error.hpp"
#include "relations.hpp"

namespace espalier {
namespace {

constexpr double kMaxInt = 2147483647;  // counts fit 32 bits: MPI, oneDNN and token ids
constexpr double kMaxDegree = 65536;
constexpr double kMostWatchdog = 1e6;  // seconds: 12 days

constexpr double kMaxFloat = std::numeric_limits<float>::max();  // kernels compute in fp32

Allowed Any() { return {}; }
Allowed From(double min) { return {.min = min}; }
/// What fp32 can hold without becoming infinite, or 0.
Allowed Float() { return {.min = 0, .max = kMaxFloat}; }
Allowed PositiveFloat() { return {.min = kLeastFloat, .max = kMaxFloat}; }
Allowed Between(double min, double max) { return {.min = min, .max = max}; }
Allowed Count() { return Between(1, kMaxInt); }
Allowed CountOrZero() { return Between(0, kMaxInt); }
Allowed Fraction() { return {.min = 0, .max = 0.9999999}; }  // the next fp32 is 1
Allowed Paths() { return {.paths = true}; }

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
const Derived kDecaySteps = {
    "run.steps - lr.warmup_steps", {"run.steps", "lr.warmup_steps"}, [](const Deck& d) -> DeckValue {
      return std::max<int64_t>(1, d.run.steps - d.lr.warmup_steps);
    }};
const Derived kChunks = {"1; interleaved, zbv, dualpipev: 2", {"pipeline.schedule"}, [](const Deck& d) -> DeckValue {
                           return int64_t{TraitsOf(d.pipeline.schedule).min_chunks};
                         }};
const Derived kValidateSequences = {
    "batch.global", {"batch.global"}, [](const Deck& d) -> DeckValue { return d.batch.global; }};

using Strings = std::vector<std::string>;
using Integers = std::vector<int64_t>;

std::vector<DeckKey> Rows() {
  // clang-format off
  return {
    {"run", "seed", FIELD(run.seed), 1234, From(0),
     "Seed of the initial weights and of the order of samples."},
    {"run", "steps", FIELD(run.steps), Required{}, Count(),
     "Optimizer steps of the whole run, restarts included."},
    {"run", "dir", FIELD(run.dir), kRunDir, Any(),
     "Folder of metrics and checkpoints; relative to the working directory."},
    {"run", "device", CHOICE(run.device), "auto", OneOf<RunDevice>(),
     "Where kernels run; auto is cuda on a node with a GPU for each of its ranks, else cpu."},
    {"run", "transport", CHOICE(run.transport), "auto", OneOf<Transport>(),
     "What carries messages between ranks; auto is nccl between GPUs if every rank has its own, else mpi. Over mpi GPUs' messages pass through the host."},
    {"run", "threads", FIELD(run.threads), 0, Between(0, 4096),
     "Threads per rank; 0: OMP_NUM_THREADS, or else a rank's share of the cores that it may use (a core of k ranks counts 1/k)."},
    {"run", "deterministic", FIELD(run.deterministic), true, Any(),
     "false lets CUDA kernels trade the bitwise promises for speed; CPU kernels are always deterministic."},
    {"run", "product_plans", FIELD(run.product_plans), "", Any(),
     "File of measured products (espalier calibrate), relative to the working directory: which algorithm GPUs take for each; empty: the library's "
     "first choice."},
    {"run", "time_limit", FIELD(run.time_limit), "", Any(),
     "Stop with a checkpoint before this much time has passed since the start, in any of Slurm's forms (minutes, "
     "minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds) or as 90s, 30m, "
     "1h, 2d; empty: no limit but Slurm's."},
    {"run", "stop_margin_s", FIELD(run.stop_margin_s), -1.0, From(-1),
     "Seconds kept free before the time limit, beside a step and a save; -1: the smaller of 90 and 15 % of the limit."},
    {"run", "watchdog_s", FIELD(run.watchdog_s), 60.0, Between(0, kMostWatchdog),
     "Seconds without progress in a step, between steps or in a validation after which the job is ended and the rank and instruction that hang are "
     "named; at least 1; 0: off."},
    {"run", "watchdog_slow_s", FIELD(run.watchdog_slow_s), 0.0, Between(0, kMostWatchdog),
     "The same for the start with its first step, for saving and loading, and for the end; at least run.watchdog_s; 0: 600 s, at least ten times "
     "run.watchdog_s, and 1 s more per 100 MB of state."},
    {"run", "peak_tflops", FIELD(run.peak_tflops), 0.0, From(0),
     "Peak of one rank's device in TFLOP/s, which mfu is counted against; 0: a GPU's by its name, a processor's measured at the start."},

    {"model", "family", CHOICE(model.family), "llama", OneOf<Family>(),
     "Architecture, as Hugging Face defines it."},
    {"model", "layers", FIELD(model.layers), Required{}, Between(1, kMostLayers),
     "Transformer layers."},
    {"model", "dim", FIELD(model.dim), Required{}, Count(),
     "Width of the residual stream."},
    {"model", "heads", FIELD(model.heads), Required{}, Count(),
     "Attention heads; must divide dim, and for llama leave an even head size: rotary positions turn pairs."},
    {"model", "kv_heads", FIELD(model.kv_heads), kKvHeads, Count(),
     "Heads of keys and values; must divide heads; gpt2 has as many as heads."},
    {"model", "ffn_dim", FIELD(model.ffn_dim), Required{}, Count(),
     "Inner width of the feed-forward half."},
    {"model", "vocab", FIELD(model.vocab), Required{}, Between(2, kMaxInt),
     "Number of different tokens; at least 256 for text."},
    {"model", "seq_len", FIELD(model.seq_len), Required{}, Between(2, kMaxInt),
     "Tokens per sequence."},
    {"model", "norm_eps", FIELD(model.norm_eps), 1e-5, PositiveFloat(),
     "Added to the mean square (llama) or variance (gpt2) in the norms."},
    {"model", "rope_theta", FIELD(model.rope_theta), 500000.0, PositiveFloat(),
     "Base of the rotary frequencies; gpt2 has learned positions and no use for it."},
    {"model", "tie_embeddings", FIELD(model.tie_embeddings), false, Any(),
     "The head uses the embedding's weights."},
    {"model", "init_std", FIELD(model.init_std), 0.02, Float(),
     "Standard deviation of the initial weights; o_proj and down_proj (gpt2: c_proj) get it divided by sqrt(2 layers)."},

    {"parallel", "pp", FIELD(parallel.pp), 1, Between(1, kMaxDegree),
     "Pipeline stages."},
    {"parallel", "dp_replicate", FIELD(parallel.dp_replicate), 1, Between(1, kMaxDegree),
     "Data-parallel groups that hold the same parameters."},
    {"parallel", "dp_shard", FIELD(parallel.dp_shard), -1, Between(-1, kMaxDegree),
     "Data-parallel ranks that share out the parameters; -1: whatever ranks are left; 0 is not allowed."},
    {"parallel", "cp", FIELD(parallel.cp), 1, Between(1, kMaxDegree),
     "Context-parallel ranks, each with two of 2 cp chunks of every sequence, an early and a late one; 2 cp must divide seq_len."},
    {"parallel", "tp", FIELD(parallel.tp), 1, Between(1, kMaxDegree),
     "Tensor-parallel ranks; must divide heads, and divide kv_heads or be a multiple of it."},
    {"parallel", "zero", FIELD(parallel.zero), 3, Between(1, 3),
     "What dp_shard shards: 1 optimizer state; 2 gradients too; 3 parameters too."},
    {"parallel", "reduce", CHOICE(parallel.reduce), "step", OneOf<ReduceFrequency>(),
     "When gradients are reduced: once per step, after the last microbatch, or after each microbatch; with zero >= 2 they "
     "are then kept sharded."},
    {"parallel", "sequence_parallel", FIELD(parallel.sequence_parallel), true, Any(),
     "tp ranks share out the sequence between their products, in unequal pieces where tp does not divide seq_len."},
    {"parallel", "loss_parallel", FIELD(parallel.loss_parallel), true, Any(),
     "tp ranks share out the logits; no rank holds all of them."},
    {"parallel", "context", CHOICE(parallel.context), "ring", OneOf<ContextMode>(),
     "How queries meet the keys of other cp ranks: keys travel in a ring, each hop under the attention of the one before; or are "
     "gathered; or whole sequences of fewer heads are formed (then cp * tp must divide heads and kv_heads). No effect while cp = 1."},

    {"pipeline", "schedule", CHOICE(pipeline.schedule), "1f1b", OneOf<ScheduleKind>(),
     "Order of forward and backward microbatches on the stages."},
    {"pipeline", "chunks", FIELD(pipeline.chunks), kChunks, Between(1, 1024),
     "Pieces of the model per stage: at least 2 for interleaved, 2 for zbv and dualpipev, else 1."},
    {"pipeline", "split", FIELD(pipeline.split), Integers{}, Count(),
     "Layers of each chunk, in order; empty: balanced by cost."},

    {"batch", "global", FIELD(batch.global), Required{}, Count(),
     "Sequences per step, over all ranks."},
    {"batch", "micro", FIELD(batch.micro), Required{}, Count(),
     "Sequences per microbatch and data-parallel rank; "
     "global / (micro * dp_replicate * dp_shard) microbatches must come out whole."},

    {"precision", "compute", CHOICE(precision.compute), "bf16", OneOf<Dtype>(),
     "Type of activations and of the weights in products; master weights, gradients, their sums and the optimizer's "
     "state are fp32."},

    {"recompute", "mode", CHOICE(recompute.mode), "none", OneOf<RecomputeMode>(),
     "Activations computed again in backward instead of kept: selective: norms, activations, what attention reads; full: "
     "all of a layer but its input."},
    {"recompute", "regather", CHOICE(recompute.regather), "auto", OneOf<Regather>(),
     "Gather sharded parameters again for backward; auto keeps them if pp > 1."},

    {"overlap", "tensor", FIELD(overlap.tensor), true, Any(),
     "Backward tp communication under the weight-gradient product."},
    {"overlap", "prefetch", FIELD(overlap.prefetch), 1, CountOrZero(),
     "Layers whose parameters are gathered ahead of their use; 0: at their use."},

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
     "Decoupled decay of tensors of two dimensions and more."},
    {"optimizer", "decay_norms", FIELD(optimizer.decay_norms), false, Any(),
     "Vectors (norms, biases) decay too."},
    {"optimizer", "clip_norm", FIELD(optimizer.clip_norm), 1.0, Float(),
     "Gradients with a larger global norm are scaled down to it; 0: off."},

    {"lr", "warmup_steps", FIELD(lr.warmup_steps), 0, CountOrZero(),
     "Steps of linear warm-up to optimizer.lr."},
    {"lr", "decay", CHOICE(lr.decay), "cosine", OneOf<Decay>(),
     "Shape of the decay after warm-up."},
    {"lr", "decay_steps", FIELD(lr.decay_steps), kDecaySteps, Count(),
     "Steps from the end of warm-up to the lowest rate."},
    {"lr", "min_ratio", FIELD(lr.min_ratio), 0.1, Between(0, 1),
     "Lowest rate as a part of optimizer.lr."},

    {"data", "format", CHOICE(data.format), "text", OneOf<DataFormat>(),
     "text: bytes are tokens; tokens: flat uint16 or uint32 ids after a small header."},
    {"data", "paths", FIELD(data.paths), Required{}, Paths(),
     "Training files or globs (** too); relative to the deck that names them, on the command line to the working "
     "directory."},
    {"data", "validation", FIELD(data.validation), Strings{}, Paths(),
     "Validation files or globs."},
    {"data", "shuffle", FIELD(data.shuffle), true, Any(),
     "Samples in the order of a permutation keyed by run.seed, anew in each epoch; false: as they stand."},
    {"data", "validate_every_steps", FIELD(data.validate_every_steps), 0, CountOrZero(),
     "Steps between validations; 0: never."},
    {"data", "validate_sequences", FIELD(data.validate_sequences), kValidateSequences, Count(),
     "Sequences of one validation; a multiple of batch.global."},

    {"checkpoint", "every_steps", FIELD(checkpoint.every_steps), 0, CountOrZero(),
     "Steps between checkpoints; 0: only at the end."},
    {"checkpoint", "every_s", FIELD(checkpoint.every_s), 0.0, From(0),
     "Seconds between checkpoints, by the first rank's clock; 0: by steps alone."},
    {"checkpoint", "at_start", FIELD(checkpoint.at_start), false, Any(),
     "Also commit the initial weights, as step 0."},
    {"checkpoint", "keep", FIELD(checkpoint.keep), 3, Count(),
     "Newest checkpoints of the run's line that stay on disk; 2 at least while steps follow."},
    {"checkpoint", "asynchronous", FIELD(checkpoint.asynchronous), true, Any(),
     "Write a copy of the state while training goes on; where there is no room for the copy, training waits."},
    {"checkpoint", "restart", CHOICE(checkpoint.restart), "auto", OneOf<Restart>(),
     "Continue from the latest checkpoint of run.dir: auto, if there is one."},
    {"checkpoint", "fallback", FIELD(checkpoint.fallback), 1, CountOrZero(),
     "Damaged checkpoints to step back over at a restart."},

    {"guard", "on_nonfinite", CHOICE(guard.on_nonfinite), "stop", OneOf<OnNonfinite>(),
     "After a step whose loss or gradient is not finite, which changes no weight: stop; leave it at that and go on; or load the last "
     "checkpoint and go on behind the batch."},
    {"guard", "max_skips", FIELD(guard.max_skips), 10, Count(),
     "Skipped steps in a row; one more stops the run."},
    {"guard", "max_rollbacks", FIELD(guard.max_rollbacks), 3, Count(),
     "Rollbacks of one start of the run; one more stops it."},

    {"report", "every_steps", FIELD(report.every_steps), 1, Count(),
     "Steps between lines on the console; metrics.jsonl has every step."},
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
      {"parallel", "degrees of parallelism; their product is the number of ranks"},
      {"pipeline", "what the stages do in which order"},
      {"batch", "sequences per step and per microbatch"},
      {"precision", "number formats"},
      {"recompute", "what is computed or gathered again instead of kept"},
      {"overlap", "communication under compute"},
      {"optimizer", "AdamW"},
      {"lr", "the learning rate over the steps"},
      {"data", "what is read"},
      {"checkpoint", "what is saved, and how a run continues"},
      {"guard", "what happens when numbers are not finite"},
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
