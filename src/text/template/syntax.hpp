// The tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/value.hpp"

namespace espalier::jinja {

enum class ExpressionKind : uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       ///< operands: key, value, key, value, ...
  kAttribute,  ///< operand.name
  kItem,       ///< operand[operand]
  kSlice,      ///< operand[from:to:step], each of which may be null
  kCall,       ///< operand(arguments)
  kFilter,     ///< operand|name(arguments)
  kTest,       ///< the test name(arguments) of an operand
  kNot,
  kNegative,
  kBinary,   ///< name is the operator
  kCompare,  ///< operands a, b, c and operators of each pair: a < b and b < c
  kAnd,
  kOr,
  kConditional,  ///< operands: condition, then, else, which may be null
};

struct Expression {
  ExpressionKind kind;
  int64_t line;
  std::string name = {};
  Value constant{None{}};
  std::vector<std::unique_ptr<Expression>> operands = {};  ///< for a call, filter or test: the first, then the
                                                           ///< arguments
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named = {};  ///< arguments by name
  std::vector<std::string> operators = {};
};
using ExpressionPtr = std::unique_ptr<Expression>;

enum class StatementKind : uint8_t {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kGeneration,
  kBreak,
  kContinue
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  ///< null: none
};

struct Statement {
  StatementKind kind;
  int64_t line;
  std::string text = {};                  ///< for a macro: its name
  std::vector<std::string> targets = {};  ///< names that are set; for an attribute: "ns", "name"
  bool sets_attribute = false;
  ExpressionPtr value = {}, condition = {};  ///< for a loop: its sequence, and the condition of elements (may be null)
  std::vector<Parameter> parameters = {};
  std::vector<Statement> body = {}, otherwise = {};
};

/// Throws TemplateError with the line of an unsupported construct.
std::vector<Statement> Parse(std::string_view source);

}  // namespace espalier::jinja
