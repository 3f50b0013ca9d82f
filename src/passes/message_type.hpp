// The attribute `message` of a reshard: the type in which a gradient is sent where it is reduced over dp or cp
// (parallel.reduce_dtype).
#pragma once

#include <string>
#include <string_view>

#include "espalier/deck/deck.hpp"
#include "espalier/util/attributes.hpp"

namespace espalier {

inline constexpr std::string_view kMessageType = "message";

/// The type of a reshard that reduces a gradient. Empty for fp32, in which gradients are made.
inline Attributes GradientMessages(const Deck& deck) {
  Attributes attributes;
  if (deck.parallel.reduce_dtype != Dtype::kF32)
    attributes.texts[std::string(kMessageType)] = Name(deck.parallel.reduce_dtype);
  return attributes;
}

inline bool HasMessageType(const Attributes& attributes) { return attributes.texts.count(kMessageType) > 0; }

/// Takes the attribute away. True if there was one: bf16.
inline bool TakeMessageType(Attributes& attributes) {
  return !attributes.texts.extract(std::string(kMessageType)).empty();
}

}  // namespace espalier
