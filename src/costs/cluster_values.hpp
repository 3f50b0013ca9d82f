// Values of cluster files: converts settings to fields, and fields to TOML.
#pragma once

#include <string>
#include <vector>

#include "espalier/costs/cluster.hpp"
#include "espalier/deck/settings.hpp"

namespace espalier {

/// Sets `field` and returns "", or returns what is wrong and what is allowed. Bounds hold for numbers, and for the
/// second column of curves. Lists of sizes may hold 0.
std::string Read(const RawSetting& setting, const Allowed& allowed, bool& field);
std::string Read(const RawSetting& setting, const Allowed& allowed, int& field);
std::string Read(const RawSetting& setting, const Allowed& allowed, int64_t& field);
std::string Read(const RawSetting& setting, const Allowed& allowed, double& field);
std::string Read(const RawSetting& setting, const Allowed& allowed, std::string& field);
std::string Read(const RawSetting& setting, const Allowed& allowed, std::vector<int64_t>& field);
std::string Read(const RawSetting& setting, const Allowed& allowed, Curve& field);
/// [[rows, columns, share], ...]
std::string Read(const RawSetting& setting, const Allowed& allowed, std::vector<MatmulTile>& field);
/// [[bytes, us, samples], ...], bytes ascending.
std::string Read(const RawSetting& setting, const Allowed& allowed, std::map<int64_t, Measured>& field);

/// As TOML; Read gives the same bits.
std::string Write(bool field);
std::string Write(int field);
std::string Write(int64_t field);
std::string Write(double field);
std::string Write(const std::string& field);
std::string Write(const std::vector<int64_t>& field);
std::string Write(const Curve& field);
std::string Write(const std::vector<MatmulTile>& field);
std::string Write(const std::map<int64_t, Measured>& field);

}  // namespace espalier
