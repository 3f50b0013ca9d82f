#include "text/template/evaluate.hpp"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <map>

#include "text/template/functions.hpp"

namespace espalier::jinja {
namespace {

// Costs in bytes of text that take as long to produce.
constexpr size_t kStepCost = 32, kElementCost = 256;
constexpr int kDeepestCall = 1000;  // nested expressions and statements, over all macros

/// Names of one level. A loop's body has a new level for each element, an {% if %} has none.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::map<std::string, Value, std::less<>> names;

  const Value* Find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get())
      if (const auto found = scope->names.find(name); found != scope->names.end()) return &found->second;
    return nullptr;
  }
};

/// How a body was left.
enum class Exit : uint8_t { kEnd, kBreak, kContinue };

bool IsStrict(const std::string& op) { return op == "<" || op == ">"; }

class Evaluator {
 public:
  explicit Evaluator(std::vector<std::pair<std::string, Value>> variables) {
    for (auto& [name, value] : variables) scope_->names[name] = std::move(value);
  }
  /// Scopes and their values may refer to one another.
  ~Evaluator() {
    for (const auto& scope : macro_scopes_) scope->names.clear();
  }
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  RenderedText Run(const std::vector<Statement>& statements) {
    Body(statements);
    return {std::move(out_), std::move(spans_)};
  }

 private:
  /// Runs `work` for a line: counts the depth, and adds the line to errors.
  template <typename Work>
  auto At(int64_t line, Work work) {
    struct Depth {
      explicit Depth(int& depth) : depth(depth) { ++depth; }
      ~Depth() { --depth; }
      Depth(const Depth&) = delete;
      Depth& operator=(const Depth&) = delete;
      int& depth;
    };
    const Depth depth(depth_);
    try {
      if (depth_ > kDeepestCall) Fail("the template calls itself too deep");
      budget_.Spend(kStepCost);
      return work();
    } catch (TemplateError& error) {
      if (error.line == 0) error.line = line;
      throw;
    }
  }

  // Statements.

  void Write(const std::string& text) {
    budget_.Spend(text.size());
    out_ += text;
  }

  Exit Body(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements)
      if (const Exit exit = At(statement.line, [&] { return One(statement); }); exit != Exit::kEnd) return exit;
    return Exit::kEnd;
  }

  Exit One(const Statement& s) {
    switch (s.kind) {
      case StatementKind::kText:
        Write(s.text);
        break;
      case StatementKind::kPrint:
        Write(ToText(Get(*s.value)));
        break;
      case StatementKind::kIf:
        return Body(IsTrue(Get(*s.condition)) ? s.body : s.otherwise);
      case StatementKind::kFor:
        return For(s);
      case StatementKind::kSet:
        Set(s);
        break;
      case StatementKind::kSetBlock:
        SetTarget(s, {Captured(s.body)});
        break;
      case StatementKind::kMacro:
        Define(s);
        break;
      case StatementKind::kGeneration:
        return Generation(s);
      case StatementKind::kBreak:
        return Exit::kBreak;
      case StatementKind::kContinue:
        return Exit::kContinue;
    }
    return Exit::kEnd;
  }

  /// Runs `work` with a new scope of names.
  template <typename Work>
  auto InScope(std::shared_ptr<Scope> outer, Work work) {
    struct Restore {
      std::shared_ptr<Scope>& at;
      std::shared_ptr<Scope> before;
      ~Restore() { at = std::move(before); }
    };
    auto own = std::make_shared<Scope>(Scope{std::move(outer), {}});
    const Restore restore{scope_, std::exchange(scope_, std::move(own))};
    return work();
  }

  Exit For(const Statement& s) {
    std::vector<Value> items;
    for (Value& item : ElementsOf(Get(*s.value)))
      if (!s.condition || InScope(scope_, [&] {
            Unpack(s, item);
            return IsTrue(Get(*s.condition));
          }))
        items.push_back(std::move(item));
    for (size_t i = 0; i < items.size(); ++i) {
      budget_.Spend(kElementCost);
      const Exit exit = InScope(scope_, [&] {
        scope_->names["loop"] = LoopAt(items, i);
        Unpack(s, items[i]);
        return Body(s.body);
      });
      if (exit == Exit::kBreak) return Exit::kEnd;
    }
    return items.empty() ? Body(s.otherwise) : Exit::kEnd;
  }

  static Value LoopAt(const std::vector<Value>& items, size_t i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t size = std::ssize(items);
    std::vector<std::pair<std::string, Value>> entries = {
        {"index", {at + 1}},     {"index0", {at}},           {"revindex", {size - at}}, {"revindex0", {size - at - 1}},
        {"first", {at == 0}},    {"last", {at + 1 == size}}, {"length", {size}},        {"depth", {int64_t{1}}},
        {"depth0", {int64_t{0}}}};
    if (i > 0) entries.emplace_back("previtem", items[i - 1]);
    if (at + 1 < size) entries.emplace_back("nextitem", items[i + 1]);
    Value loop = MakeDict(std::move(entries));
    loop.Entries()->is_namespace = true;
    return loop;
  }

  /// Assigns values to the names of a loop or of {% set %}.
  void Unpack(const Statement& s, const Value& value) {
    if (s.targets.size() == 1) return Name(s.targets[0], value);
    const std::vector<Value> parts = ElementsOf(value);
    if (parts.size() != s.targets.size()) Fail(fmt::format("{} values for {} names", parts.size(), s.targets.size()));
    for (size_t i = 0; i < parts.size(); ++i) Name(s.targets[i], parts[i]);
  }
  void Name(const std::string& name, Value value) { scope_->names[name] = std::move(value); }

  void Set(const Statement& s) { SetTarget(s, Get(*s.value)); }
  void SetTarget(const Statement& s, const Value& value) {
    if (!s.sets_attribute) return Unpack(s, value);
    const Value* target = scope_->Find(s.targets[0]);
    Dict* dict = target != nullptr ? target->Entries() : nullptr;
    if (dict == nullptr || !dict->is_namespace || s.targets[0] == "loop")
      Fail(fmt::format("{}.{} is set, and {} is no namespace", s.targets[0], s.targets[1], s.targets[0]));
    dict->Set(s.targets[1], value);
  }

  std::string Captured(const std::vector<Statement>& body) {
    const std::string before = std::exchange(out_, {});
    ++captures_;
    InScope(scope_, [&] { return Body(body); });
    --captures_;
    return std::exchange(out_, before);
  }

  Exit Generation(const Statement& s) {
    if (captures_ > 0) Fail("{% generation %} inside {% macro %} or {% set %} is not supported");
    const size_t begin = out_.size();
    const Exit exit = InScope(scope_, [&] { return Body(s.body); });
    if (out_.size() > begin) spans_.push_back({begin, out_.size()});
    return exit;
  }

  void Define(const Statement& s) {
    macro_scopes_.push_back(scope_);
    Name(s.text, {std::make_shared<Function>([this, &s, outer = std::weak_ptr(scope_)](Arguments& arguments) {
           return InScope(outer.lock(), [&] { return Call(s, arguments); });
         })});
  }
  Value Call(const Statement& s, Arguments& arguments) {
    if (arguments.positional.size() > s.parameters.size()) Fail(fmt::format("{}: too many arguments", s.text));
    for (size_t i = 0; i < s.parameters.size(); ++i)
      Name(s.parameters[i].name, Argument(s.parameters[i], i, arguments));
    if (!arguments.named.empty()) Fail(fmt::format("{} has no parameter {}", s.text, arguments.named[0].first));
    return {Captured(s.body)};
  }
  Value Argument(const Parameter& parameter, size_t i, Arguments& arguments) {
    if (i < arguments.positional.size()) return arguments.positional[i];
    for (auto named = arguments.named.begin(); named != arguments.named.end(); ++named)
      if (named->first == parameter.name) {
        Value value = std::move(named->second);
        arguments.named.erase(named);
        return value;
      }
    return parameter.fallback ? Get(*parameter.fallback) : Value{Undefined{parameter.name}};
  }

  // Expressions.

  Value Get(const Expression& e) {
    return At(e.line, [&] { return ValueOf(e); });
  }
  Value Operand(const Expression& e, size_t i) { return e.operands[i] ? Get(*e.operands[i]) : Value{None{}}; }

  Value ValueOf(const Expression& e) {
    switch (e.kind) {
      case ExpressionKind::kConstant:
        return e.constant;
      case ExpressionKind::kName:
        return Named(e.name);
      case ExpressionKind::kList:
        return MakeList(Operands(e, 0));
      case ExpressionKind::kTuple:
        return MakeList(Operands(e, 0), Sequence::kTuple);
      case ExpressionKind::kDict:
        return DictOf(e);
      case ExpressionKind::kAttribute:
        return AttributeOf(Operand(e, 0), e.name);
      case ExpressionKind::kItem:
        return ItemOf(Operand(e, 0), Operand(e, 1));
      case ExpressionKind::kSlice:
        return SliceOf(Operand(e, 0), Operand(e, 1), Operand(e, 2), Operand(e, 3), budget_);
      case ExpressionKind::kCall:
        return CallOf(e);
      default:
        return OperatorOf(e);
    }
  }

  Value OperatorOf(const Expression& e) {
    switch (e.kind) {
      case ExpressionKind::kFilter: {
        Arguments arguments = ArgumentsOf(e);
        return ApplyFilter(e.name, Operand(e, 0), arguments, budget_);
      }
      case ExpressionKind::kTest: {
        Arguments arguments = ArgumentsOf(e);
        return {ApplyTest(e.name, Operand(e, 0), arguments)};
      }
      case ExpressionKind::kNot:
        return {!IsTrue(Operand(e, 0))};
      case ExpressionKind::kNegative:
        return Calculate("-", {int64_t{0}}, Operand(e, 0));
      case ExpressionKind::kCompare:
        return Compare(e);
      case ExpressionKind::kAnd: {
        Value left = Operand(e, 0);
        return IsTrue(left) ? Operand(e, 1) : left;
      }
      case ExpressionKind::kOr: {
        Value left = Operand(e, 0);
        return IsTrue(left) ? left : Operand(e, 1);
      }
      case ExpressionKind::kConditional:
        if (IsTrue(Operand(e, 0))) return Operand(e, 1);
        return e.operands[2] ? Operand(e, 2) : Value{Undefined{"a condition without else"}};
      default:
        return Binary(e.name, Operand(e, 0), Operand(e, 1));
    }
  }

  Value Named(const std::string& name) {
    const Value* found = scope_->Find(name);
    return found != nullptr ? *found : GlobalFunction(name, budget_);
  }

  std::vector<Value> Operands(const Expression& e, size_t first) {
    std::vector<Value> values;
    for (size_t i = first; i < e.operands.size(); ++i) values.push_back(Operand(e, i));
    return values;
  }
  Arguments ArgumentsOf(const Expression& e) {
    Arguments arguments{Operands(e, 1), {}};
    for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, Get(*value));
    return arguments;
  }

  Value DictOf(const Expression& e) {
    Value made = MakeDict({});
    for (size_t i = 0; i < e.operands.size(); i += 2) {
      const Value key = Operand(e, i);
      if (key.Text() == nullptr) Fail(fmt::format("a key of a dict is {}: only str is supported", TypeName(key)));
      made.Entries()->Set(*key.Text(), Operand(e, i + 1));
    }
    return made;
  }

  Value CallOf(const Expression& e) {
    const Expression& callee = *e.operands[0];
    Arguments arguments = ArgumentsOf(e);
    if (callee.kind == ExpressionKind::kAttribute) {
      const Value of = Operand(callee, 0);
      if (IsMethod(of, callee.name)) return CallMethod(of, callee.name, arguments, budget_);
      return CallFunction(AttributeOf(of, callee.name), callee.name, arguments);
    }
    return CallFunction(Get(callee), callee.name, arguments);
  }
  static Value CallFunction(const Value& function, const std::string& name, Arguments& arguments) {
    if (const auto* call = std::get_if<std::shared_ptr<Function>>(&function.held)) {
      const std::shared_ptr<Function> kept = *call;
      return (*kept)(arguments);
    }
    Fail(fmt::format("{} is called, which is {}", name.empty() ? "something" : name, TypeName(function)));
  }

  Value Compare(const Expression& e) {
    Value left = Operand(e, 0);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = Operand(e, i + 1);
      if (!Holds(e.operators[i], left, right)) return {false};
      left = std::move(right);
    }
    return {true};
  }
  static bool Holds(const std::string& op, const Value& a, const Value& b) {
    if (op == "==") return AreEqual(a, b);
    if (op == "!=") return !AreEqual(a, b);
    if (op == "in") return Contains(b, a);
    if (op == "not in") return !Contains(b, a);
    const bool less = op[0] == '<' ? IsLess(a, b) : IsLess(b, a);
    return less || (!IsStrict(op) && AreEqual(a, b));
  }

  Value Binary(const std::string& op, const Value& a, const Value& b) {
    if (op == "~") return budget_.Text(ToText(a) + ToText(b));
    for (const Value* v : {&a, &b})
      if (v->IsUndefined()) Fail(fmt::format("{} is undefined", std::get<Undefined>(v->held).name));
    if (op == "+" && a.Text() != nullptr && b.Text() != nullptr) return budget_.Text(*a.Text() + *b.Text());
    if (op == "+" && a.Elements() != nullptr && b.Elements() != nullptr) return Appended(a, b);
    if (op == "*" && a.Text() != nullptr && b.Whole()) return Repeated(*a.Text(), *b.Whole());
    return Calculate(op, a, b);
  }
  Value Appended(const Value& a, const Value& b) {
    const Sequence kind = a.Elements()->kind;
    if (kind != b.Elements()->kind || (kind != Sequence::kList && kind != Sequence::kTuple))
      Fail(fmt::format("{} + {}: only two lists or two tuples can be added", TypeName(a), TypeName(b)));
    std::vector<Value> items = ElementsOf(a);
    for (Value& item : ElementsOf(b)) items.push_back(std::move(item));
    budget_.Spend(items.size());
    return MakeList(std::move(items), kind);
  }
  Value Repeated(const std::string& text, int64_t times) {
    std::string out;
    for (int64_t i = 0; i < times && !text.empty(); ++i) {
      budget_.Spend(text.size());
      out += text;
    }
    return {std::move(out)};
  }

  static Value Calculate(const std::string& op, const Value& a, const Value& b) {
    if (!a.Number() || !b.Number()) Fail(fmt::format("{} {} {} is not supported", TypeName(a), op, TypeName(b)));
    if (a.Whole() && b.Whole() && op != "/") return OfWholes(op, *a.Whole(), *b.Whole());
    const double x = *a.Number(), y = *b.Number();
    if (op == "+") return {x + y};
    if (op == "-") return {x - y};
    if (op == "*") return {x * y};
    if (op == "/" && y != 0) return {x / y};
    Fail(fmt::format("{} {} {} is not supported", ToText(a), op, ToText(b)));
  }
  static Value OfWholes(const std::string& op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool failed = false;
    if (op == "+")
      failed = __builtin_add_overflow(a, b, &result);
    else if (op == "-")
      failed = __builtin_sub_overflow(a, b, &result);
    else if (op == "*")
      failed = __builtin_mul_overflow(a, b, &result);
    else if ((op == "//" || op == "%") && b != 0 && b != -1)
      result = op == "//" ? Floor(a, b) : a - Floor(a, b) * b;
    else
      failed = true;
    if (failed) Fail(fmt::format("{} {} {} is not supported", a, op, b));
    return {result};
  }
  static int64_t Floor(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  std::vector<std::shared_ptr<Scope>> macro_scopes_;  ///< scopes in which macros were defined: they live until the end
  Budget budget_;
  std::string out_;
  std::vector<TextSpan> spans_;
  int captures_ = 0, depth_ = 0;
};

}  // namespace

RenderedText Evaluate(const std::vector<Statement>& statements, std::vector<std::pair<std::string, Value>> variables) {
  return Evaluator(std::move(variables)).Run(statements);
}

}  // namespace espalier::jinja
