// What travels to or from one peer, and the workspace through which it does: what all lowerings share.
#pragma once

#include <vector>

#include "comm/lowering/box_copy.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// The workspace, handed out front to back.
class Workspace {
 public:
  Workspace(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {}

  /// The next `bytes`, 64-byte aligned; CHECKs that they are planned.
  std::byte* Take(int64_t bytes);

 private:
  std::byte* base_;
  int64_t bytes_;
  int64_t used_ = 0;
};

/// The pieces that travel to or from one peer, in one message.
using Parcel = std::vector<View>;

int64_t BytesOf(const Parcel& parcel);
/// Wide elements first, so that every element of a packed message is aligned.
void Order(Parcel& parcel);
/// Travels from or to its place.
bool InPlace(const Parcel& parcel);
/// The pieces of a parcel, one after the other from `base`.
std::vector<View> Packed(const Parcel& parcel, std::byte* base);

/// The pieces of each member, out of all transfers.
std::vector<Parcel> ParcelsOf(const std::vector<Transfer>& transfers, const std::vector<Tensor>& tensors, int members);
/// All tensors that are not empty.
Parcel Whole(const std::vector<Tensor>& tensors);

}  // namespace espalier
