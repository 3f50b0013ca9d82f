// One function per model family; model.cpp chooses by the deck's model.family.
#pragma once

#include "espalier/model/model.hpp"

namespace espalier {

/// The work of a graph: `tokens` of `batch` sequences.
struct Forward {
  int64_t batch, tokens;
  Purpose purpose;
};

Model BuildLlama(const Deck& deck, const Split& split, const Forward& forward);
Model BuildGpt2(const Deck& deck, const Split& split, const Forward& forward);

}  // namespace espalier
