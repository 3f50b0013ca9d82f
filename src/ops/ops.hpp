// One function per op definition, and what several of them share.
#pragma once

#include <optional>

#include "espalier/ops/op.hpp"

namespace espalier {

/// KernelTraits::key of texts, or of numbers, alone.
KeyAttributes Texts(auto... names) { return {.texts = {names...}}; }
KeyAttributes Numbers(auto... names) { return {.numbers = {names...}}; }
/// Ops on rows of experts answer how full the pool is (src/ops/dispatch.cpp).
inline const KeyAttributes kKeyOfRows{.numbers = {"load", "pass"}};

/// The element type of the copy that an update writes beside the master; none without attribute `copy`.
std::optional<Dtype> TypeOfCopy(const Op& op);

/// The first dim counts matrices that the op treats one by one (attribute `each`).
bool IsForEach(const Op& op);

#define ESPALIER_DECLARE(name, op) OpDefinition op();
ESPALIER_OPS(ESPALIER_DECLARE, ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

/// An op whose outputs are its inputs under other placements, which are stated, not inferred.
OpDefinition Moving(std::string_view summary, const KernelTraits& kernel);

/// Work::bytes of most kernels: inputs are read and outputs written once; accumulators are read, too.
double EachOperandOnce(const LocalOp& op, bool accumulate);
/// Rows of input 1 are added to rows of an fp32 table: each is read, and its row of the table is read and written. The
/// first microbatch clears the table.
double AddedRowsBytes(const LocalOp& op, bool accumulate);
/// As above, for ops on rows of experts. Balanced routing fills a share of these rows (src/ops/dispatch.cpp).
double FilledRowsOnce(const LocalOp& op, bool accumulate);
double InputBytes(const LocalOp& op, size_t input);
double OutputBytes(const LocalOp& op);

}  // namespace espalier
