// Renders conversations for chat_templates.py: a line of standard input is {"template", "tokens", "object"}, a line of
// standard output {"text", "spans"} or {"error"}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "espalier/text/chat_template.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

nlohmann::ordered_json Answer(const nlohmann::ordered_json& question) {
  try {
    std::vector<std::pair<std::string, std::string>> tokens;
    for (const auto& [name, text] : question["tokens"].items()) tokens.emplace_back(name, text);
    const ChatTemplate chat("template", question["template"], std::move(tokens));
    const RenderedText rendered =
        question["mark"] ? chat.RenderMarked(question["object"]) : RenderedText{chat.Render(question["object"]), {}};
    nlohmann::ordered_json spans = nlohmann::ordered_json::array();
    for (const TextSpan& span : rendered.spans) spans.push_back({span.begin, span.end});
    return {{"text", rendered.text}, {"spans", spans}};
  } catch (const UserError& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace
}  // namespace espalier

int main() {
  for (std::string line; std::getline(std::cin, line);)
    std::cout << espalier::Answer(nlohmann::ordered_json::parse(line)).dump() << "\n";
}
