#include "cluster_rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cluster_ranges.hpp"
#include "cluster_values.hpp"
#include "espalier/util/spelling.hpp"
#include "kernel_key.hpp"

namespace espalier {
namespace {

/// Ops of collectives and messages that have measured times.
std::vector<std::string_view> TransferNames() {
  return {Name(OpKind::kAllGather), Name(OpKind::kReduceScatter), Name(OpKind::kAllReduce), Name(OpKind::kAllToAll),
          Name(OpKind::kRingShift), Name(OpKind::kGatherStages),  Name(OpKind::kSend)};
}

std::vector<std::string_view> KernelNames() {
  std::vector<std::string_view> names;
  for (const OpDefinition& op : AllOps())
    if (!IsCommunication(op.kind) && !IsHostCopy(op.kind) && op.kind != OpKind::kReshard)
      names.push_back(Name(op.kind));
  return names;
}

}  // namespace

/// Reads the settings of one row by name; the remaining ones are unknown.
class RowReader::Fields {
 public:
  Fields(const RawRow& row, bool whole, Errors& errors) : row_(row), whole_(whole), errors_(errors) {}

  /// The first line of the row.
  const std::string& place() const { return row_.settings.front().place; }

  template <typename T>
  void Get(const std::string& name, const Allowed& allowed, T& field) {
    known_.push_back(name);
    const std::string full_name = row_.section + "." + name;
    const auto setting = std::ranges::find(row_.settings, full_name, &RawSetting::name);
    if (setting == row_.settings.end()) {
      if (whole_) Refuse(place(), full_name, "missing: every row must set it");
      good_ = false;
      return;
    }
    if (const std::string fault = Read(*setting, allowed, field); !fault.empty())
      Refuse(setting->place, setting->shown, fault);
  }

  /// True if there was no error; unknown names are errors. Call it after the last Get.
  bool Finish() {
    for (const RawSetting& setting : row_.settings) {
      const std::string name = setting.name.substr(row_.section.size() + 1);
      if (std::ranges::find(known_, name) == known_.end()) Refuse(setting.place, setting.shown, Unknown(name));
    }
    return good_;
  }

  void Refuse(const std::string& place, const std::string& shown, const std::string& why) {
    errors_.push_back(fmt::format("{}: {}: {}", place, shown, why));
    good_ = false;
  }

 private:
  std::string Unknown(const std::string& name) const {
    const std::string nearest = Nearest(name, known_);
    return "unknown key" + (nearest.empty() ? fmt::format(" ([[{}]] has {})", row_.section, fmt::join(known_, ", "))
                                            : DidYouMean(row_.section + "." + nearest));
  }

  const RawRow& row_;
  bool whole_;
  Errors& errors_;
  std::vector<std::string> known_;
  bool good_ = true;
};

void RowReader::Add(const RawRow& row) {
  Fields fields(row, whole_, errors_);
  if (row.section == "attention") return AddAttention(fields);
  if (row.section == "kernel") return AddKernel(fields);
  AddCollective(fields);
}

bool RowReader::IsFirst(const std::string& row, const std::string& place) {
  const auto file = [](const std::string& at) { return at.substr(0, at.rfind(':')); };
  std::string& before = place_[row];
  if (!before.empty() && file(before) == file(place)) {
    errors_.push_back(fmt::format("{}: {}: the row is there twice, first at {} (remove one)", place, row, before));
    return false;
  }
  before = place;
  return true;
}

void RowReader::AddAttention(Fields& fields) {
  AttentionRates rates;
  fields.Get("head_dim", Count(), rates.head_dim);
  fields.Get("causal", Flops(), rates.causal);
  fields.Get("full", Flops(), rates.full);
  if (!fields.Finish() || !IsFirst(fmt::format("attention of head_dim {}", rates.head_dim), fields.place())) return;
  std::vector<AttentionRates>& all = cluster_.compute.attention;
  const auto at = std::ranges::lower_bound(all, rates.head_dim, {}, &AttentionRates::head_dim);
  if (at != all.end() && at->head_dim == rates.head_dim)
    *at = rates;
  else
    all.insert(at, rates);
}

void RowReader::AddKernel(Fields& fields) {
  std::string op;
  KernelKey key;
  Measured measured;
  fields.Get("op", {.choices = KernelNames()}, op);
  fields.Get("variant", Any(), key.variant);
  fields.Get("sizes", Sizes(), key.sizes);
  fields.Get("us", Time(), measured.us);
  fields.Get("samples", Samples(), measured.samples);
  if (!fields.Finish()) return;
  key.kind = OpKindOf(op);
  const std::string row = fmt::format("{} \"{}\" {}", op, key.variant, ToToml(key.sizes));
  if (!Rebuild(key))
    return fields.Refuse(fields.place(), row,
                         "no kernel has this variant and sizes (rows are written by espalier calibrate, and by runs "
                         "with report.costs; remove the row, or measure again)");
  if (IsFirst(row, fields.place())) cluster_.table.kernels[key] = measured;
}

void RowReader::AddCollective(Fields& fields) {
  std::string op;
  CollectiveKey key;
  std::map<int64_t, Measured> points;
  fields.Get("op", {.choices = TransferNames()}, op);
  fields.Get("ranks", Count(), key.place.ranks);
  fields.Get("nodes", Count(), key.place.nodes);
  fields.Get("ranks_per_node", Count(), key.place.ranks_per_node);
  fields.Get("points", Time(), points);
  if (!fields.Finish()) return;
  key.kind = OpKindOf(op);
  const std::string row = fmt::format("{} of {} ranks on {} nodes, {} per node", op, key.place.ranks, key.place.nodes,
                                      key.place.ranks_per_node);
  const GroupPlace& p = key.place;
  if (p.nodes > p.ranks || int64_t{p.nodes} * p.ranks_per_node < p.ranks || p.ranks_per_node > p.ranks - p.nodes + 1)
    return fields.Refuse(fields.place(), row, "so many ranks cannot be on so many nodes");
  if (IsFirst(row, fields.place())) cluster_.table.collectives[key] = std::move(points);
}

std::string RowsText(const Cluster& cluster) {
  std::string text;
  for (const AttentionRates& rates : cluster.compute.attention)
    text += fmt::format("\n[[attention]]\nhead_dim = {}\ncausal = {}\nfull = {}\n", rates.head_dim, Write(rates.causal),
                        Write(rates.full));
  for (const auto& [key, measured] : cluster.table.kernels)
    text += fmt::format("\n[[kernel]]\nop = \"{}\"\nvariant = {}\nsizes = {}\nus = {}\nsamples = {}\n", key.kind,
                        Write(key.variant), Write(key.sizes), Write(measured.us), measured.samples);
  for (const auto& [key, points] : cluster.table.collectives)
    text += fmt::format("\n[[collective]]\nop = \"{}\"\nranks = {}\nnodes = {}\nranks_per_node = {}\npoints = {}\n",
                        key.kind, key.place.ranks, key.place.nodes, key.place.ranks_per_node, Write(points));
  return text;
}

}  // namespace espalier
