#include "choose_part.hpp"

#include <fmt/core.h>

#include "espalier/kernels/cuda/fallbacks.hpp"

namespace espalier::cuda {
namespace {

constexpr const char* kPlain = "the plain kernel computes it, many times slower";

}  // namespace

std::optional<AttentionPart> ChoosePart(const AttentionShape& shape, AttentionPart planned, int64_t usable,
                                        const std::function<Offer(AttentionPart)>& ask, const std::string& call) {
  std::string too_much;
  for (const AttentionPart& part : PartsFrom(shape, {shape.batch, shape.kv_heads})) {
    const Offer offer = ask(part);
    if (part.Size() > planned.Size() && (!offer.refusal.empty() || offer.bytes > usable)) continue;
    if (!offer.refusal.empty()) {
      NoteFallback(fmt::format("{}: cuDNN has no kernel ({}): {}", call, offer.refusal, kPlain));
      return std::nullopt;
    }
    if (offer.bytes <= usable) {
      if (!too_much.empty())
        NoteFallback(fmt::format("{}, so it computes {} of {} sequences and {} of {} kv heads at once", too_much,
                                 part.batch, shape.batch, part.kv_heads, shape.kv_heads));
      return part;
    }
    if (too_much.empty())
      too_much = fmt::format("{}: cuDNN wants {} bytes of workspace, {} are planned", call, offer.bytes, usable);
  }
  NoteFallback(fmt::format("{}, and too many even for one kv head of one sequence: {}", too_much, kPlain));
  return std::nullopt;
}

}  // namespace espalier::cuda
