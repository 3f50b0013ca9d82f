// Rows of a cluster file: [[attention]] rates, measured [[kernel]]s and [[collective]]s.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "espalier/costs/cluster.hpp"
#include "espalier/deck/settings.hpp"

namespace espalier {

/// The settings of one row, in the order of their lines; there is at least one.
struct RawRow {
  std::string section;  ///< "kernel"
  std::vector<RawSetting> settings;
};

/// Puts rows into a cluster. A row replaces an equal one of an included file; within one file that is an error.
class RowReader {
 public:
  /// Both must outlive it. `whole`: all lines could be read, so an absent key is missing.
  RowReader(Cluster& cluster, bool whole, Errors& errors) : cluster_(cluster), whole_(whole), errors_(errors) {}

  void Add(const RawRow& row);

 private:
  class Fields;
  void AddAttention(Fields& fields);
  void AddKernel(Fields& fields);
  void AddCollective(Fields& fields);
  /// False, with an error, if the file of `place` ("h100.toml:12") has had the row before.
  bool IsFirst(const std::string& row, const std::string& place);

  Cluster& cluster_;
  bool whole_;
  Errors& errors_;
  std::map<std::string, std::string> place_;  ///< by row: where it was set last
};

/// All rows as TOML, each after an empty line.
std::string RowsText(const Cluster& cluster);

}  // namespace espalier
