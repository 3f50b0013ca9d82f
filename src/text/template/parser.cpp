// The tags of a template.
#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>

#include "text/template/expression_parser.hpp"

namespace espalier::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  std::vector<Statement> Run() {
    std::vector<Statement> all = Body({});
    if (Now().kind != TokenKind::kEnd) Refuse(fmt::format("{{% {} %}} ends nothing", Now().text));
    return all;
  }

 private:
  /// Statements up to a tag whose first name is one of `ends`; the next token is then that name.
  std::vector<Statement> Body(std::initializer_list<std::string_view> ends) {
    const Deeper deeper(*this);
    std::vector<Statement> body;
    for (;;) {
      if (Now().kind == TokenKind::kEnd) {
        if (ends.size() > 0) Refuse(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
        return body;
      }
      if (Now().kind == TokenKind::kText) {
        body.push_back({.kind = StatementKind::kText, .line = Now().line, .text = Take().text});
      } else if (Now().kind == TokenKind::kPrintBegin) {
        body.push_back(Print());
      } else {
        Take();
        if (std::ranges::find(ends, Now().text) != ends.end()) return body;
        body.push_back(Tag());
      }
    }
  }

  Statement Print() {
    Statement print{.kind = StatementKind::kPrint, .line = Take().line};
    print.value = Tuple();
    ExpectEnd(TokenKind::kPrintEnd);
    return print;
  }

  Statement Tag() {
    const int64_t line = Now().line;
    const std::string name = ExpectName();
    if (name == "if") return If(line);
    if (name == "for") return For(line);
    if (name == "set") return Set(line);
    if (name == "macro") return Macro(line);
    if (name == "generation") return Generation(line);
    if (name == "break" || name == "continue") return Jump(line, name);
    Fail(fmt::format("the tag {{% {} %}} is not supported; supported are if, for, set, macro, generation, break, "
                     "continue",
                     name),
         line);
  }

  void EndOf(std::string_view name) {
    if (!SkipName(name)) Refuse(fmt::format("{{% {} %}} is missing", name));
    ExpectEnd(TokenKind::kTagEnd);
  }

  Statement If(int64_t line) {
    const Deeper deeper(*this);
    Statement made{.kind = StatementKind::kIf, .line = line};
    made.condition = Tuple(false);
    ExpectEnd(TokenKind::kTagEnd);
    made.body = Body({"elif", "else", "endif"});
    const int64_t next = Now().line;
    if (SkipName("elif")) {
      made.otherwise.push_back(If(next));
      return made;
    }
    if (SkipName("else")) {
      ExpectEnd(TokenKind::kTagEnd);
      made.otherwise = Body({"endif"});
    }
    EndOf("endif");
    return made;
  }

  Statement For(int64_t line) {
    Statement loop{.kind = StatementKind::kFor, .line = line};
    loop.targets = Targets();
    if (!SkipName("in")) Refuse(fmt::format("'in' is expected, not {}", Shown()));
    loop.value = Tuple(false);
    if (SkipName("if")) loop.condition = Any();
    if (IsName("recursive")) Refuse("recursive loops are not supported");
    ExpectEnd(TokenKind::kTagEnd);
    ++loops_;
    loop.body = Body({"else", "endfor"});
    --loops_;
    if (SkipName("else")) {
      ExpectEnd(TokenKind::kTagEnd);
      loop.otherwise = Body({"endfor"});
    }
    EndOf("endfor");
    return loop;
  }

  /// Names, in brackets or not.
  std::vector<std::string> Targets() {
    const bool brackets = SkipOperator("(");
    std::vector<std::string> names = {ExpectName()};
    while (SkipOperator(",")) names.push_back(ExpectName());
    if (brackets) Expect(")");
    return names;
  }

  Statement Set(int64_t line) {
    Statement set{.kind = StatementKind::kSet, .line = line};
    set.targets = Targets();
    if (SkipOperator(".")) {
      set.targets.push_back(ExpectName());
      set.sets_attribute = true;
    }
    if (IsOperator("|")) Refuse("a filter of {% set %} is not supported");
    if (SkipOperator("=")) {
      set.value = Tuple();
      ExpectEnd(TokenKind::kTagEnd);
      return set;
    }
    ExpectEnd(TokenKind::kTagEnd);
    set.kind = StatementKind::kSetBlock;
    set.body = Body({"endset"});
    EndOf("endset");
    return set;
  }

  Statement Macro(int64_t line) {
    Statement macro{.kind = StatementKind::kMacro, .line = line, .text = ExpectName()};
    Expect("(");
    while (!IsOperator(")")) {
      Parameter parameter{ExpectName(), SkipOperator("=") ? Any() : nullptr};
      macro.parameters.push_back(std::move(parameter));
      if (!SkipOperator(",")) break;
    }
    Expect(")");
    ExpectEnd(TokenKind::kTagEnd);
    const int loops = std::exchange(loops_, 0);
    macro.body = Body({"endmacro"});
    loops_ = loops;
    EndOf("endmacro");
    return macro;
  }

  Statement Generation(int64_t line) {
    Statement made{.kind = StatementKind::kGeneration, .line = line};
    ExpectEnd(TokenKind::kTagEnd);
    made.body = Body({"endgeneration"});
    EndOf("endgeneration");
    return made;
  }

  Statement Jump(int64_t line, const std::string& name) {
    if (loops_ == 0) Fail(fmt::format("{{% {} %}} outside a loop", name), line);
    ExpectEnd(TokenKind::kTagEnd);
    return {.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue, .line = line};
  }

  int loops_ = 0;  ///< loops around the current tag
};

}  // namespace

std::vector<Statement> Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace espalier::jinja
