// Renders a parsed template.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "espalier/text/chat_template.hpp"
#include "text/template/syntax.hpp"

namespace espalier::jinja {

/// The text, and the spans that {% generation %} blocks made. Throws TemplateError.
RenderedText Evaluate(const std::vector<Statement>& statements, std::vector<std::pair<std::string, Value>> variables);

}  // namespace espalier::jinja
