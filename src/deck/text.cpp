#include "text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "espalier/deck/schema.hpp"
#include "espalier/util/spelling.hpp"

namespace espalier {
char32_t DecodeUtf8(std::string_view text, size_t& position) {
  const auto first = static_cast<unsigned char>(text[position++]);
  if (first < 0x80) return first;
  const size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  if (first < 0xc2 || first > 0xf4 || position + more > text.size()) return kNotUtf8;
  char32_t c = first & (0x3fu >> more);
  for (size_t i = 0; i < more; ++i) {
    const auto byte = static_cast<unsigned char>(text[position + i]);
    if ((byte & 0xc0u) != 0x80u) return kNotUtf8;
    c = c << 6 | (byte & 0x3fu);
  }
  const char32_t smallest = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
  if (c < smallest || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return kNotUtf8;
  position += more;
  return c;
}

bool IsPlainText(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const char32_t c = DecodeUtf8(text, i);
    if (c == kNotUtf8 || c < 0x20 || c == 0x7f) return false;
  }
  return true;
}

std::string Printable(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = DecodeUtf8(text, i);
    const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
    shown += c == kNotUtf8 || control ? "?" : text.substr(begin, i - begin);
  }
  return shown;
}

namespace {

/// Names in torchtitan, Megatron and Hugging Face for our keys and values.
struct OtherWord {
  std::string_view theirs, ours;
};

constexpr OtherWord kOtherKeys[] = {
    {"hidden_size", "model.dim"},
    {"n_embd", "model.dim"},
    {"num_hidden_layers", "model.layers"},
    {"num_layers", "model.layers"},
    {"n_layers", "model.layers"},
    {"n_layer", "model.layers"},
    {"num_nextn_predict_layers", "model.mtp_layers"},
    {"mtp_num_layers", "model.mtp_layers"},
    {"mtp_loss_scaling_factor", "loss.mtp_weight"},
    {"num_attention_heads", "model.heads"},
    {"n_heads", "model.heads"},
    {"n_head", "model.heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"num_query_groups", "model.kv_heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"intermediate_size", "model.ffn_dim"},
    {"ffn_hidden_size", "model.ffn_dim"},
    {"num_experts", "experts.count"},
    {"num_local_experts", "experts.count"},
    {"n_routed_experts", "experts.count"},
    {"num_experts_per_tok", "experts.per_token"},
    {"moe_intermediate_size", "experts.ffn_dim"},
    {"first_k_dense_replace", "experts.first_layer"},
    {"decoder_sparse_step", "experts.every"},
    {"vocab_size", "model.vocab"},
    {"max_position_embeddings", "model.seq_len"},
    {"seq_length", "model.seq_len"},
    {"n_positions", "model.seq_len"},
    {"block_size", "model.seq_len"},
    {"rms_norm_eps", "model.norm_eps"},
    {"initializer_range", "model.init_std"},
    {"tie_word_embeddings", "model.tie_embeddings"},
    {"learning_rate", "optimizer.lr"},
    {"clip_grad", "optimizer.clip_norm"},
    {"max_norm", "optimizer.clip_norm"},
    {"min_lr", "lr.min_ratio"},
    {"lr_decay_style", "lr.decay"},
    {"global_batch_size", "batch.global"},
    {"micro_batch_size", "batch.micro"},
    {"local_batch_size", "batch.micro"},
    {"per_device_train_batch_size", "batch.micro"},
    {"tensor_parallel_degree", "parallel.tp"},
    {"tensor_model_parallel_size", "parallel.tp"},
    {"pipeline_parallel_degree", "parallel.pp"},
    {"pipeline_model_parallel_size", "parallel.pp"},
    {"context_parallel_degree", "parallel.cp"},
    {"context_parallel_size", "parallel.cp"},
    {"data_parallel_shard_degree", "parallel.dp_shard"},
    {"data_parallel_replicate_degree", "parallel.dp_replicate"},
    {"fsdp", "parallel.dp_shard"},
    {"train_iters", "run.steps"},
    {"max_steps", "run.steps"},
    {"output_dir", "run.dir"},
    {"save_interval", "checkpoint.every_steps"},
    {"dataset_path", "data.paths"},
    {"eval_interval", "data.validate_every_steps"},
};

/// Full names of keys in earlier versions.
constexpr OtherWord kFormerKeys[] = {{"run.product_plans", "run.gemm_plans"}};

constexpr OtherWord kOtherValues[] = {
    {"gpu", "cuda"},   {"nvidia", "cuda"}, {"bfloat16", "bf16"},        {"float32", "fp32"},
    {"adam", "adamw"}, {"gpt", "gpt2"},    {"allgather", "all_gather"}, {"ulysses", "all_to_all"}};

template <size_t kCount>
std::string_view Ours(const OtherWord (&words)[kCount], std::string_view theirs) {
  const auto found = std::ranges::find(words, theirs, &OtherWord::theirs);
  return found == std::end(words) ? "" : found->ours;
}

}  // namespace

std::string OtherName(std::string_view value) { return std::string(Ours(kOtherValues, value)); }

std::string_view NameOfFormerKey(std::string_view full_name) { return Ours(kFormerKeys, full_name); }

std::string NearestKey(std::string_view written) {
  constexpr size_t kLongestName = 64;
  if (written.size() > kLongestName) return "";
  if (const std::string_view now = NameOfFormerKey(written); !now.empty()) return std::string(now);
  const size_t dot = written.rfind('.');
  const std::string_view section = dot == written.npos ? "" : written.substr(0, dot);
  const std::string_view name = dot == written.npos ? written : written.substr(dot + 1);
  if (const std::string_view ours = Ours(kOtherKeys, name); !ours.empty()) return std::string(ours);
  std::string nearest;
  int least = 0;
  for (const DeckKey& key : DeckSchema()) {
    // A wrong or missing section is a likely error too, so a section counts as at most two edits.
    const int in_name = EditDistance(name, key.name);
    const int distance = in_name + std::min(2, EditDistance(section, key.section));
    if (!IsNear(in_name, name) || distance > std::max(2, static_cast<int>(name.size()) / 3)) continue;
    if (!nearest.empty() && distance >= least) continue;
    nearest = key.FullName();
    least = distance;
  }
  return nearest;
}

int64_t Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t f : factors)
    if (__builtin_mul_overflow(product, f, &product)) return std::numeric_limits<int64_t>::max();
  return product;
}

std::string ListNumbers(const std::vector<int64_t>& numbers) {
  constexpr size_t kMaxShown = 10;
  const auto end = numbers.begin() + static_cast<ptrdiff_t>(std::min(kMaxShown, numbers.size()));
  return fmt::format("{}{}", fmt::join(numbers.begin(), end, ", "), numbers.size() > kMaxShown ? ", ..." : "");
}

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> small, large;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::string MultiplesText(int64_t n) {
  if (n > std::numeric_limits<int64_t>::max() / 3) return fmt::format("{}", n);
  return fmt::format("{}, {}, {}, ...", n, 2 * n, 3 * n);
}

}  // namespace espalier
