// Cluster files, read and written. All errors of a file and its includes are reported together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "cluster_rows.hpp"
#include "cluster_schema.hpp"
#include "espalier/deck/find_input.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/spelling.hpp"

namespace espalier {
namespace {

const ClusterKey* FindKey(std::string_view name) {
  const auto found =
      std::ranges::find_if(ClusterSchema(), [&](const ClusterKey& key) { return key.FullName() == name; });
  return found == ClusterSchema().end() ? nullptr : &*found;
}

/// Settings and rows -> Cluster, in rising precedence.
class ClusterReader {
 public:
  explicit ClusterReader(std::string path) : path_(std::move(path)) { cluster_.path = path_; }

  Cluster Read() {
    const RawDeck file = ReadSettingsFile(path_, format_, errors_);
    whole_ = file.whole && std::ranges::none_of(file.settings, &RawSetting::reported);
    std::vector<RawRow> rows;
    int row = -1;  // the settings of a row are consecutive
    for (const RawSetting& setting : file.settings) {
      if (setting.reported) continue;
      if (setting.row < 0) {
        Apply(setting);
        continue;
      }
      if (setting.row != row) rows.push_back({setting.name.substr(0, setting.name.find('.')), {}});
      row = setting.row;
      rows.back().settings.push_back(setting);
    }
    RowReader reader(cluster_, whole_, errors_);
    for (const RawRow& each : rows) reader.Add(each);
    for (const ClusterKey& key : ClusterSchema())
      if (whole_ && key.presence == Presence::kRequired && !set_.contains(key.FullName()))
        Refuse(path_, key.FullName(), fmt::format("missing: every cluster file must set it ({})", key.sentence));
    if (cluster_.ranks_per_domain % std::max(1, cluster_.ranks_per_node) != 0)
      Refuse(path_, fmt::format("cluster.ranks_per_domain = {}", cluster_.ranks_per_domain),
             fmt::format("must be a multiple of cluster.ranks_per_node = {}: a domain is of whole nodes",
                         cluster_.ranks_per_node));
    if (!errors_.empty()) throw UserError(ExitStatus::kDeck, std::move(errors_));
    return std::move(cluster_);
  }

 private:
  void Refuse(const std::string& place, const std::string& shown, const std::string& why) {
    errors_.push_back(fmt::format("{}: {}: {}", place, shown, why));
  }

  void Apply(const RawSetting& setting) {
    const ClusterKey* key = FindKey(setting.name);
    if (key == nullptr) return Refuse(setting.place, setting.shown, Unknown(setting));
    set_[setting.name] = true;
    if (const std::string fault = SetKey(cluster_, *key, setting); !fault.empty())
      Refuse(setting.place, setting.shown, fault);
  }

  /// Why a key is unknown, and which one was probably meant.
  std::string Unknown(const RawSetting& setting) {
    const auto is = [&](std::string_view name) { return setting.name == name; };
    if (std::ranges::any_of(format_.sections, is)) return fmt::format("must be a section, [{}]", setting.name);
    if (std::ranges::any_of(format_.rows, is)) return fmt::format("must be rows, [[{}]]", setting.name);
    if (setting.section)
      return fmt::format("unknown section (sections: {}; rows: {})", fmt::join(format_.sections, ", "),
                         fmt::join(format_.rows, ", "));
    std::vector<std::string> names;
    for (const ClusterKey& key : ClusterSchema()) names.push_back(key.FullName());
    const std::string nearest = NearestName(setting.name, names);
    if (!nearest.empty()) set_[nearest] = true;  // not missing: misspelt
    return "unknown key" + (nearest.empty() ? KeysOfSection(setting.name) : DidYouMean(nearest));
  }

  /// The nearest name by spelling, or the same name in another section.
  static std::string NearestName(const std::string& name, const std::vector<std::string>& names) {
    const std::string own = name.substr(name.rfind('.') + 1);
    for (const std::string& other : names)
      if (other.substr(other.rfind('.') + 1) == own) return other;
    return Nearest(name, names);
  }

  std::string KeysOfSection(const std::string& name) const {
    const std::string section = name.substr(0, name.find('.'));
    std::vector<std::string_view> keys;
    for (const ClusterKey& key : ClusterSchema())
      if (key.section == section) keys.push_back(key.name);
    if (keys.empty())
      return fmt::format(" (sections: {}; rows: {})", fmt::join(format_.sections, ", "), fmt::join(format_.rows, ", "));
    return fmt::format(" ([{}] has {})", section, fmt::join(keys, ", "));
  }

  const SettingsFormat format_ = ClusterFormat();
  std::string path_;
  bool whole_ = true;
  Errors errors_;
  Cluster cluster_;
  std::map<std::string, bool> set_;
};

}  // namespace

Cluster LoadCluster(const std::string& path) { return ClusterReader(FindInput(path).value_or(path)).Read(); }

std::string ToText(const Cluster& cluster) {
  const Cluster defaults;
  std::string text;
  std::string_view section;
  for (const ClusterKey& key : ClusterSchema()) {
    const std::string value = KeyText(cluster, key);
    if (key.presence == Presence::kOptional && value == KeyText(defaults, key)) continue;
    if (section != key.section) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", key.section);
    section = key.section;
    text += fmt::format("{} = {}\n", key.name, value);
  }
  return text + RowsText(cluster);
}

}  // namespace espalier
