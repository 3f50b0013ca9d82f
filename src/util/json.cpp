#include "espalier/util/json.hpp"

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace espalier {
namespace {

using nlohmann::json;

/// Containers that are open, from the outermost; each moves into the one around it when it ends.
class Builder final : public json::json_sax_t {
 public:
  explicit Builder(const JsonRules& rules) : rules_(rules) {}

  json Take() { return std::move(whole_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& value) override { return Add(std::move(value)); }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_array() override { return Add(Close()); }

  bool key(string_t& name) override {
    if (rules_.unique_keys && open_.back().container.contains(name))
      throw std::invalid_argument(fmt::format("key {} appears twice", name));
    open_.back().key = std::move(name);
    return true;
  }

  bool end_object() override {
    json object = Close();
    if (rules_.keep && !rules_.keep(static_cast<int>(open_.size()), object)) return true;
    return Add(std::move(object));
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& error) override { throw error; }

 private:
  struct Container {
    json container;
    std::string key;  ///< of the next member
  };

  bool Open(json container) {
    if (std::ssize(open_) >= rules_.most_depth)
      throw std::invalid_argument(fmt::format("is nested deeper than {} levels", rules_.most_depth));
    open_.push_back({std::move(container), ""});
    return true;
  }

  json Close() {
    json container = std::move(open_.back().container);
    open_.pop_back();
    return container;
  }

  bool Add(json value) {
    if (open_.empty())
      whole_ = std::move(value);
    else if (Container& around = open_.back(); around.container.is_array())
      around.container.push_back(std::move(value));
    else
      around.container[around.key] = std::move(value);
    return true;
  }

  const JsonRules& rules_;
  std::vector<Container> open_;
  json whole_;
};

}  // namespace

json ParseJson(std::string_view text, const JsonRules& rules) {
  Builder builder(rules);
  json::sax_parse(text, &builder);
  return builder.Take();
}

}  // namespace espalier
