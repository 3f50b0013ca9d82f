// Jinja2's expressions, to the extent that chat templates use them.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "text/template/lexer.hpp"
#include "text/template/syntax.hpp"

namespace espalier::jinja {

inline constexpr int kDeepestSyntax = 100;
inline constexpr int kLongest = 200;  ///< consecutive operators of one kind

/// Reads tokens from left to right. Every function throws TemplateError with the line of an unsupported construct.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view source) : tokens_(Tokenize(source)) {}

 protected:
  using Kind = ExpressionKind;

  /// Counts the depth of the tree.
  struct Deeper {
    explicit Deeper(ExpressionParser& parser) : parser(parser) {
      if (++parser.depth_ > kDeepestSyntax) parser.Refuse("it is nested too deep");
    }
    ~Deeper() { --parser.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ExpressionParser& parser;
  };

  // Tokens.

  const Token& Now() const { return tokens_[at_]; }
  const Token& Next(size_t more = 1) const { return tokens_[std::min(at_ + more, tokens_.size() - 1)]; }
  [[noreturn]] void Refuse(const std::string& what) const { Fail(what, Now().line); }
  Token Take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool Is(TokenKind kind, std::string_view text) const { return Now().kind == kind && Now().text == text; }
  bool IsOperator(std::string_view text) const { return Is(TokenKind::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(TokenKind::kName, text); }
  bool SkipOperator(std::string_view text) { return IsOperator(text) && (Take(), true); }
  bool SkipName(std::string_view text) { return IsName(text) && (Take(), true); }
  std::string Shown() const {
    switch (Now().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kTagEnd:
        return "the end of the tag";
      case TokenKind::kPrintEnd:
        return "}}";
      default:
        return fmt::format("'{}'", Now().text);
    }
  }
  void Expect(std::string_view text) {
    if (!SkipOperator(text)) Refuse(fmt::format("'{}' is expected, not {}", text, Shown()));
  }
  std::string ExpectName() {
    if (Now().kind != TokenKind::kName) Refuse(fmt::format("a name is expected, not {}", Shown()));
    return Take().text;
  }
  void Lengthen(int& length) const {
    if (++length > kLongest) Refuse("the expression is too long");
  }
  void ExpectEnd(TokenKind kind) {
    if (Now().kind != kind) Refuse(fmt::format("{} is not expected here", Shown()));
    Take();
  }

  // Expressions, from the lowest precedence to the highest.

  static ExpressionPtr Make(Kind kind, int64_t line, std::string name = {}) {
    return std::make_unique<Expression>(Expression{.kind = kind, .line = line, .name = std::move(name)});
  }
  static ExpressionPtr Constant(int64_t line, Value value) {
    ExpressionPtr made = Make(Kind::kConstant, line);
    made->constant = std::move(value);
    return made;
  }
  static ExpressionPtr With(ExpressionPtr made, ExpressionPtr operand) {
    made->operands.push_back(std::move(operand));
    return made;
  }
  ExpressionPtr Pair(Kind kind, int64_t line, std::string name, ExpressionPtr left, ExpressionPtr right) {
    return With(With(Make(kind, line, std::move(name)), std::move(left)), std::move(right));
  }

  /// One expression, or several with commas between them.
  ExpressionPtr Tuple(bool conditional = true) {
    const int64_t line = Now().line;
    const auto element = [&] { return conditional ? Any() : Or(); };
    ExpressionPtr first = element();
    if (!IsOperator(",")) return first;
    ExpressionPtr tuple = With(Make(Kind::kTuple, line), std::move(first));
    while (SkipOperator(",") && !EndsTuple()) tuple->operands.push_back(element());
    return tuple;
  }
  bool EndsTuple() const {
    return IsOperator(")") || IsOperator("]") || Now().kind == TokenKind::kTagEnd || Now().kind == TokenKind::kPrintEnd;
  }

  /// Operators of equal precedence, from left to right.
  template <typename Follows, typename Operand>
  ExpressionPtr Chain(Kind kind, Follows follows, Operand operand) {
    ExpressionPtr left = operand();
    int length = 0;
    while (follows()) {
      Lengthen(length);
      const Token token = Take();
      left = Pair(kind, token.line, token.text, std::move(left), operand());
    }
    return left;
  }

  ExpressionPtr Any() {
    const Deeper deeper(*this);
    ExpressionPtr value = Or();
    int length = 0;
    while (IsName("if")) {
      Lengthen(length);
      ExpressionPtr made = Make(Kind::kConditional, Take().line);
      made->operands.push_back(Or());
      made->operands.push_back(std::move(value));
      made->operands.push_back(SkipName("else") ? Any() : nullptr);
      value = std::move(made);
    }
    return value;
  }
  ExpressionPtr Or() {
    return Chain(
        Kind::kOr, [&] { return IsName("or"); }, [&] { return And(); });
  }
  ExpressionPtr And() {
    return Chain(
        Kind::kAnd, [&] { return IsName("and"); }, [&] { return Not(); });
  }
  ExpressionPtr Not() {
    if (!IsName("not")) return Compare();
    const Deeper deeper(*this);
    const int64_t line = Take().line;
    return With(Make(Kind::kNot, line), Not());
  }

  ExpressionPtr Compare() {
    const int64_t line = Now().line;
    ExpressionPtr left = Sum();
    ExpressionPtr chain;
    for (std::string name = Comparison(); !name.empty(); name = Comparison()) {
      if (!chain) chain = With(Make(Kind::kCompare, line), std::move(left));
      chain->operators.push_back(std::move(name));
      chain->operands.push_back(Sum());
    }
    return chain ? std::move(chain) : std::move(left);
  }
  /// Skips a comparison operator and returns it; empty if there is none.
  std::string Comparison() {
    for (const std::string_view name : {"==", "!=", "<", ">", "<=", ">="})
      if (SkipOperator(name)) return std::string(name);
    if (SkipName("in")) return "in";
    if (!IsName("not") || Next().kind != TokenKind::kName || Next().text != "in") return "";
    Take();
    Take();
    return "not in";
  }

  template <typename Operand>
  ExpressionPtr Chain(std::initializer_list<std::string_view> operators, Operand operand) {
    const auto follows = [&] {
      return Now().kind == TokenKind::kOperator && std::ranges::find(operators, Now().text) != operators.end();
    };
    return Chain(Kind::kBinary, follows, operand);
  }
  ExpressionPtr Sum() {
    return Chain({"+", "-"}, [&] { return Concatenation(); });
  }
  ExpressionPtr Concatenation() {
    return Chain({"~"}, [&] { return Product(); });
  }
  ExpressionPtr Product() {
    return Chain({"*", "/", "//", "%"}, [&] { return Power(); });
  }
  ExpressionPtr Power() {
    return Chain({"**"}, [&] { return Unary(true); });
  }

  ExpressionPtr Unary(bool filters) {
    const Deeper deeper(*this);
    const int64_t line = Now().line;
    ExpressionPtr made;
    if (SkipOperator("-"))
      made = With(Make(Kind::kNegative, line), Unary(false));
    else if (IsOperator("+"))
      Refuse("the sign + is not supported");
    else
      made = Primary();
    made = Postfix(std::move(made));
    return filters ? Filters(std::move(made)) : std::move(made);
  }

  ExpressionPtr Primary() {
    const Token token = Take();
    switch (token.kind) {
      case TokenKind::kName:
        return Name(token);
      case TokenKind::kString:
        return String(token);
      case TokenKind::kInteger:
        return Constant(token.line, {Number<int64_t>(token)});
      case TokenKind::kFloat:
        return Constant(token.line, {Number<double>(token)});
      default:
        break;
    }
    --at_;
    if (IsOperator("(")) return Brackets();
    if (IsOperator("[")) return List();
    if (IsOperator("{")) return Dict();
    Refuse(fmt::format("{} is not expected here", Shown()));
  }
  static ExpressionPtr Name(const Token& token) {
    if (token.text == "true" || token.text == "True") return Constant(token.line, {true});
    if (token.text == "false" || token.text == "False") return Constant(token.line, {false});
    if (token.text == "none" || token.text == "None") return Constant(token.line, {None{}});
    return Make(Kind::kName, token.line, token.text);
  }
  ExpressionPtr String(const Token& token) {
    std::string text = token.text;
    while (Now().kind == TokenKind::kString) text += Take().text;
    return Constant(token.line, {std::move(text)});
  }
  template <typename T>
  static T Number(const Token& token) {
    T number{};
    const char* end = token.text.data() + token.text.size();
    if (std::from_chars(token.text.data(), end, number).ec != std::errc())
      Fail(fmt::format("the number {} is too large", token.text), token.line);
    return number;
  }
  ExpressionPtr Brackets() {
    const int64_t line = Take().line;
    if (SkipOperator(")")) return Make(Kind::kTuple, line);
    ExpressionPtr inside = Tuple();
    Expect(")");
    return inside;
  }
  ExpressionPtr List() {
    ExpressionPtr list = Make(Kind::kList, Take().line);
    while (!IsOperator("]")) {
      list->operands.push_back(Any());
      if (!SkipOperator(",")) break;
    }
    Expect("]");
    return list;
  }
  ExpressionPtr Dict() {
    ExpressionPtr dict = Make(Kind::kDict, Take().line);
    while (!IsOperator("}")) {
      dict->operands.push_back(Any());
      Expect(":");
      dict->operands.push_back(Any());
      if (!SkipOperator(",")) break;
    }
    Expect("}");
    return dict;
  }

  ExpressionPtr Postfix(ExpressionPtr made) {
    for (int length = 0;; Lengthen(length)) {
      const int64_t line = Now().line;
      if (SkipOperator("."))
        made = With(Make(Kind::kAttribute, line, ExpectName()), std::move(made));
      else if (SkipOperator("["))
        made = Subscript(line, std::move(made));
      else if (IsOperator("("))
        made = Called(With(Make(Kind::kCall, line), std::move(made)));
      else
        return made;
    }
  }
  ExpressionPtr Subscript(int64_t line, ExpressionPtr whole) {
    ExpressionPtr parts[3];
    size_t colons = 0;
    for (; !IsOperator("]"); ++colons) {
      if (!IsOperator(":")) parts[colons] = Any();
      if (IsOperator("]")) break;
      if (colons == 2) Refuse("a slice has three parts at most");
      Expect(":");
    }
    Expect("]");
    if (colons == 0 && !parts[0]) Refuse("an index is expected");
    if (colons == 0) return Pair(Kind::kItem, line, "", std::move(whole), std::move(parts[0]));
    ExpressionPtr slice = With(Make(Kind::kSlice, line), std::move(whole));
    for (ExpressionPtr& part : parts) slice->operands.push_back(std::move(part));
    return slice;
  }
  /// Adds the arguments between brackets.
  ExpressionPtr Called(ExpressionPtr made) {
    Expect("(");
    while (!IsOperator(")")) {
      if (IsOperator("*") || IsOperator("**")) Refuse("arguments with a star are not supported");
      if (Now().kind == TokenKind::kName && Next().kind == TokenKind::kOperator && Next().text == "=") {
        std::string name = Take().text;
        Take();
        made->named.emplace_back(std::move(name), Any());
      } else {
        if (!made->named.empty()) Refuse("an argument without a name follows one with a name");
        made->operands.push_back(Any());
      }
      if (!SkipOperator(",")) break;
    }
    Expect(")");
    return made;
  }

  ExpressionPtr Filters(ExpressionPtr made) {
    for (int length = 0;; Lengthen(length)) {
      const int64_t line = Now().line;
      if (SkipOperator("|")) {
        made = With(Make(Kind::kFilter, line, ExpectName()), std::move(made));
        if (IsOperator("(")) made = Called(std::move(made));
      } else if (SkipName("is")) {
        made = Test(line, std::move(made));
      } else if (IsOperator("(")) {
        made = Called(With(Make(Kind::kCall, line), std::move(made)));
      } else {
        return made;
      }
    }
  }
  ExpressionPtr Test(int64_t line, ExpressionPtr of) {
    const bool negated = SkipName("not");
    ExpressionPtr test = With(Make(Kind::kTest, line, ExpectName()), std::move(of));
    if (IsOperator("("))
      test = Called(std::move(test));
    else if (BeginsArgument())
      test->operands.push_back(Postfix(Primary()));
    return negated ? With(Make(Kind::kNot, line), std::move(test)) : std::move(test);
  }
  /// A test may have one argument without brackets: x is divisibleby 3.
  bool BeginsArgument() const {
    if (IsName("is")) Refuse("two tests in a row need brackets");
    if (IsName("if")) Refuse("a condition after a test needs brackets around the test");
    const TokenKind kind = Now().kind;
    if (kind == TokenKind::kName) return !IsName("else") && !IsName("or") && !IsName("and");
    return kind == TokenKind::kString || kind == TokenKind::kInteger || kind == TokenKind::kFloat || IsOperator("[") ||
           IsOperator("{");
  }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace espalier::jinja
