// The keys of a cluster file as data: one row per key, bound to its field of Cluster. Reading, printing and messages
// come from this table. Measured rows and rates of attention are in cluster_rows.cpp.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/costs/cluster.hpp"
#include "espalier/deck/settings.hpp"

namespace espalier {

/// An enum field, accessed by the name of its value.
struct ClusterChoice {
  std::string_view (*get)(const Cluster&);
  void (*set)(Cluster&, std::string_view name);
};

using ClusterField = std::variant<bool& (*)(Cluster&), int& (*)(Cluster&), int64_t& (*)(Cluster&),
                                  double& (*)(Cluster&), std::string& (*)(Cluster&), Curve& (*)(Cluster&),
                                  std::vector<MatmulTile>& (*)(Cluster&), ClusterChoice>;

/// Whether a file must set a key, itself or through its includes.
enum class Presence : uint8_t { kRequired, kOptional };

struct ClusterKey {
  std::string_view section, name;
  ClusterField field;
  Presence presence = Presence::kOptional;
  Allowed allowed;
  std::string_view sentence;  ///< meaning, with the unit

  std::string FullName() const { return std::string(section) + "." + std::string(name); }
};

/// All keys, by section and in the order in which files are printed.
const std::vector<ClusterKey>& ClusterSchema();

/// Sections of ClusterSchema and rows of cluster_rows.hpp.
SettingsFormat ClusterFormat();

/// Sets the field and returns "", or returns what is wrong.
std::string SetKey(Cluster& cluster, const ClusterKey& key, const RawSetting& setting);

/// The value as TOML.
std::string KeyText(const Cluster& cluster, const ClusterKey& key);

}  // namespace espalier
