#include "espalier/checkpoint/copies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/transfer/pieces.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

constexpr size_t kMaxNamed = 3;                          // tensors
constexpr int64_t kDeviceChunkBytes = int64_t{4} << 20;  // bytes per read from a device

/// One rank's checksum of a box that several ranks hold.
struct Shared {
  int tensor = 0, first = 0;
  uint32_t crc = 0;

  auto Fields() { return std::tie(tensor, first, crc); }
};

struct RankReport {
  std::string host;
  std::vector<Shared> boxes;

  auto Fields() { return std::tie(host, boxes); }
};

/// The ranks that differ from more than half of the holders; without such a majority all holders.
struct Verdict {
  std::vector<int> differ, others;

  explicit Verdict(const Holders& holders) {
    size_t count = 0, most = 0;
    for (const auto& [crc, ranks] : holders) count += ranks.size(), most = std::max(most, ranks.size());
    for (const auto& [crc, ranks] : holders) {
      std::vector<int>& side = 2 * ranks.size() > count ? others : differ;
      side.insert(side.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(differ);
    std::ranges::sort(others);
  }
  auto operator<=>(const Verdict&) const = default;
};

/// "rank 1", "ranks 0 and 1", "ranks 0, 1 and 2".
std::string RanksText(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

std::string WithHosts(const std::vector<int>& ranks, const std::vector<std::string>& hosts) {
  std::set<std::string> theirs;
  for (const int rank : ranks) theirs.insert(hosts[static_cast<size_t>(rank)]);
  return fmt::format("{} (host{} {})", RanksText(ranks), theirs.size() == 1 ? "" : "s", fmt::join(theirs, ", "));
}

/// "a [0:2], b [0:4] and 5 more tensors".
std::string TensorsText(const std::vector<std::string>& tensors) {
  std::string text = fmt::format(
      "{}",
      fmt::join(tensors.begin(), tensors.begin() + static_cast<int64_t>(std::min(tensors.size(), kMaxNamed)), ", "));
  if (tensors.size() > kMaxNamed) text += fmt::format(" and {} more", tensors.size() - kMaxNamed);
  return text;
}

std::string TextOf(const Verdict& verdict, const std::vector<std::string>& tensors,
                   const std::vector<std::string>& hosts) {
  if (verdict.others.empty())
    return fmt::format("{} hold different values of {}: without a majority, which of them is right is not known",
                       WithHosts(verdict.differ, hosts), TensorsText(tensors));
  return fmt::format("{} hold{} other values than {} of {}", WithHosts(verdict.differ, hosts),
                     verdict.differ.size() == 1 ? "s" : "", RanksText(verdict.others), TensorsText(tensors));
}

/// The differences between the ranks; no ranks if there is none.
Corruption Judge(const std::vector<StateTensor>& tensors, const Mesh& mesh, const std::vector<RankReport>& ranks) {
  std::vector<std::string> hosts;
  std::map<SharedValue, Holders> boxes;  // by tensor and first holder
  for (const RankReport& report : ranks) {
    const auto rank = static_cast<int>(hosts.size());
    hosts.push_back(report.host);
    for (const Shared& box : report.boxes) boxes[{box.tensor, box.first}][box.crc].push_back(rank);
  }
  const auto name = [&](SharedValue box) {
    const StateTensor& tensor = tensors[static_cast<size_t>(box.first)];
    return fmt::format("{} {}", tensor.StoredName(), ToString(tensor.StoredBox(mesh, mesh.CoordinateOf(box.second))));
  };
  return JudgeHolders(boxes, name, hosts);
}

}  // namespace

uint32_t ChecksumOf(const LocalTensor& local, int64_t bytes) {
  if (local.OnHost()) return Crc32c(local.data, static_cast<size_t>(bytes));
  std::vector<char> chunk(static_cast<size_t>(std::min(bytes, kDeviceChunkBytes)));
  uint32_t crc = 0;
  for (int64_t at = 0; at < bytes; at += kDeviceChunkBytes) {
    const int64_t count = std::min(kDeviceChunkBytes, bytes - at);
    local.arena->Read(static_cast<const char*>(local.data) + at, chunk.data(), count);
    crc = Crc32c(chunk.data(), static_cast<size_t>(count), crc);
  }
  return crc;
}

Corruption JudgeHolders(const std::map<SharedValue, Holders>& values,
                        const std::function<std::string(SharedValue)>& name, const std::vector<std::string>& hosts) {
  std::map<Verdict, std::vector<std::string>> verdicts;
  for (const auto& [value, holders] : values)
    if (holders.size() > 1) verdicts[Verdict(holders)].push_back(name(value));
  Corruption found;
  std::set<int> ranks;
  for (const auto& [verdict, names] : verdicts) {
    ranks.insert(verdict.differ.begin(), verdict.differ.end());
    found.text += (found.text.empty() ? "" : "; ") + TextOf(verdict, names, hosts);
  }
  found.ranks.assign(ranks.begin(), ranks.end());
  return found;
}

Copies::Copies(const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local, const Mesh& mesh,
               World& world)
    : tensors_(tensors), mesh_(mesh), world_(world), local_(local) {
  std::map<std::string_view, const LocalTensor*> by_name;
  for (const LocalTensor& tensor : local_) by_name[tensor.tensor->name] = &tensor;
  const Coordinate coordinate = mesh.CoordinateOf(world.Rank());
  for (const StatePiece& piece : PlanPieces(tensors, mesh)) {
    const StateTensor& tensor = tensors[static_cast<size_t>(piece.tensor)];
    const int first = mesh.RankOf(mesh.GroupMember(piece.replicas, coordinate, 0));
    if (first != piece.first) continue;
    const auto found = by_name.find(tensor.name);
    CHECK(found != by_name.end(), "rank {} holds {} but passed none", world.Rank(), tensor.name);
    own_.push_back({found->second, piece.tensor, Volume(ExtentsOf(piece.box)) * SizeOf(tensor.type.dtype), first,
                    mesh.GroupSize(piece.replicas) > 1, piece.writer == world.Rank()});
  }
}

void Copies::Sum(bool written) {
  for (Own& own : own_)
    if (own.written == written) own.crc = ChecksumOf(*own.local, own.bytes);
}

void Copies::SumWritten() {
  Sum(true);
  for (const Own& own : own_)
    if (own.written) written_[own.local->tensor->name] = own.crc;
}

void Copies::SumOthers() { Sum(false); }

std::optional<Corruption> Copies::CompareNow() {
  for (Own& own : own_)
    if (own.shared) own.crc = ChecksumOf(*own.local, own.bytes);
  return Compare();
}

std::optional<Corruption> Copies::Compare() {
  RankReport mine{HostName(), {}};
  for (const Own& own : own_)
    if (own.shared) mine.boxes.push_back({own.tensor, own.first, own.crc});
  const std::vector<RankReport> ranks = Gathered(world_, mine);
  const Corruption found = OnRankZero(world_, [&] { return Judge(tensors_, mesh_, ranks); });
  return found.ranks.empty() ? std::nullopt : std::optional(found);
}

}  // namespace espalier
