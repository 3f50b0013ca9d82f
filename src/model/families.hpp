// One function per model family; model.cpp chooses by the deck's model.family.
#pragma once

#include "espalier/model/model.hpp"

namespace espalier {

Model BuildLlama(const Deck& deck, const Split& split, int64_t batch, Purpose purpose);
Model BuildGpt2(const Deck& deck, const Split& split, int64_t batch, Purpose purpose);

}  // namespace espalier
