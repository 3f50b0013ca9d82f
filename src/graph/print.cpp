// The graph as text and back, line by line. The two halves of this file mirror each other.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "espalier/graph/graph.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

std::string ChunkText(int chunk) { return chunk == kAllChunks ? "all" : std::to_string(chunk); }
std::string LayoutText(const Value& v) { return v.layout.empty() ? "" : " layout " + v.layout; }

/// Numbers that are sets of axes: their text has names.
bool IsAxes(std::string_view attribute) { return attribute == "axes" || attribute == "strip_axes"; }

std::string AttributesText(const Attributes& attributes) {
  std::vector<std::string> items;
  for (const auto& [name, number] : attributes.numbers)
    items.push_back(IsAxes(name) ? fmt::format("{}=\"{}\"", name, Name(AxesOf(number)))
                                 : fmt::format("{}={}", name, number));
  for (const auto& [name, text] : attributes.texts) items.push_back(fmt::format("{}=\"{}\"", name, text));
  return items.empty() ? "" : fmt::format(" {{{}}}", fmt::join(items, " "));
}

std::vector<std::string> Names(const Graph& graph, const std::vector<int>& ids) {
  std::vector<std::string> names;
  for (int id : ids) names.push_back(graph.value(id).name);
  return names;
}

std::string OpText(const Graph& graph, const Op& op) {
  std::vector<std::string> types;
  for (int id : op.outputs) types.push_back(ToString(graph.value(id).type) + LayoutText(graph.value(id)));
  return fmt::format("{}{}{}({}){} @ {} layer {} chunk {}{}{}{}\n", fmt::join(Names(graph, op.outputs), ", "),
                     op.outputs.empty() ? "" : " = ", op.kind, fmt::join(Names(graph, op.inputs), ", "),
                     AttributesText(op.attributes), Name(op.role), op.layer, ChunkText(op.chunk),
                     op.cheap ? " cheap" : "", types.empty() ? "" : " : ", fmt::join(types, ", "));
}

/// Reads one line; every error names the line.
class LineReader {
 public:
  LineReader(Graph& graph, std::string_view line, int number)
      : graph_(graph), rest_(line), line_(line), number_(number) {}

  void Read() {
    if (Take("value ")) return ReadValue();
    if (Take("result ")) return graph_.results.push_back(Known(Word()));
    ReadOp();
  }

 private:
  [[noreturn]] void Fail(std::string_view what) const {
    throw InvariantError(fmt::format("graph line {}: {}: '{}'", number_, what, line_));
  }
  bool Take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void Expect(std::string_view token) {
    if (!Take(token)) Fail(fmt::format("expected '{}' at '{}'", token, rest_));
  }
  /// Reads up to the next blank, comma, bracket or brace.
  std::string Word() { return Until(" ,(){}"); }
  std::string Until(std::string_view ends) {
    const size_t n = std::min(rest_.find_first_of(ends), rest_.size());
    std::string word(rest_.substr(0, n));
    if (word.empty()) Fail(fmt::format("expected a name at '{}'", rest_));
    rest_.remove_prefix(n);
    return word;
  }
  int Known(const std::string& name) const {
    const int id = graph_.FindOrNone(name);
    if (id < 0) Fail(fmt::format("unknown value {}", name));
    return id;
  }
  int ReadInteger() {
    const std::string word = Word();
    int value = 0;
    if (std::from_chars(word.data(), word.data() + word.size(), value).ec != std::errc{}) Fail("expected a number");
    return value;
  }
  int ReadChunk() {
    if (Take("all")) return kAllChunks;
    return ReadInteger();
  }
  Type ReadType() {
    const size_t bracket = rest_.find(']');
    if (bracket == std::string_view::npos) Fail("expected a type");
    size_t end = bracket + 1;
    while (rest_.substr(end).starts_with("+")) end = rest_.find('}', end) + 1;
    const Type type = ParseType(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return type;
  }

  ValueKind DeclaredKind(std::string_view name) {
    for (ValueKind kind : {ValueKind::kInput, ValueKind::kState, ValueKind::kAccumulator, ValueKind::kCache})
      if (name == Name(kind)) return kind;
    Fail("expected input, state, accumulator or cache");
  }
  void ReadValue() {
    Value v;
    v.name = Word();
    Expect(" : ");
    v.type = ReadType();
    Expect(" ");
    const std::string kind = Word();
    v.kind = DeclaredKind(kind);
    v.frequency = Take(" microbatch") ? Frequency::kMicrobatch : Frequency::kStep;
    if (v.frequency == Frequency::kStep) Expect(" step");
    Expect(" chunk ");
    v.chunk = ReadChunk();
    v.trained = !Take(" untrained");
    if (Take(" host")) v.space = Space::kHost;
    v.layout = TakeLayoutList();
    graph_.AddValue(std::move(v));
  }
  /// A layout contains commas: it ends at the next ", " or at the end of the line.
  std::string TakeLayoutList() {
    if (!Take(" layout ")) return "";
    const size_t n = std::min(rest_.find(", "), rest_.size());
    std::string layout(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return layout;
  }

  void ReadAttributes(Attributes& attributes) {
    while (!Take("}")) {
      const std::string name = Until("=");
      Expect("=");
      if (Take("\"")) {
        const size_t n = rest_.find('"');
        if (n == std::string_view::npos) Fail("unfinished text");
        const std::string_view text = rest_.substr(0, n);
        if (IsAxes(name))
          attributes.numbers[name] = ParseAxisSet(text).bits();
        else
          attributes.texts[name] = std::string(text);
        rest_.remove_prefix(n + 1);
      } else {
        const std::string word = Word();
        double number = 0;
        if (std::from_chars(word.data(), word.data() + word.size(), number).ec != std::errc{})
          Fail("expected a number");
        attributes.numbers[name] = number;
      }
      Take(" ");
    }
  }

  void ReadOp() {
    Op op;
    std::vector<std::string> outputs;
    if (rest_.find(" = ") < rest_.find('(')) {
      do outputs.push_back(Word());
      while (Take(", "));
      Expect(" = ");
    }
    const std::string name = Word();
    const std::optional<OpKind> kind = FindOpKind(name);
    if (!kind) Fail(fmt::format("there is no op {}", name));
    op.kind = *kind;
    Expect("(");
    while (!Take(")")) {
      op.inputs.push_back(Known(Word()));
      Take(", ");
    }
    if (Take(" {")) ReadAttributes(op.attributes);
    Expect(" @ ");
    ReadRole(op);
    Expect(" layer ");
    op.layer = ReadInteger();
    Expect(" chunk ");
    op.chunk = ReadChunk();
    op.cheap = Take(" cheap");
    for (size_t i = 0; i < outputs.size(); ++i) {
      Expect(i == 0 ? " : " : ", ");
      op.outputs.push_back(ReadOutput(outputs[i], op));
    }
    if (!rest_.empty()) Fail(fmt::format("unexpected '{}'", rest_));
    graph_.AddOp(std::move(op));
  }
  void ReadRole(Op& op) {
    const std::string word = Word();
    for (Role role : {Role::kP, Role::kF, Role::kB, Role::kW, Role::kS, Role::kU})
      if (word == Name(role)) {
        op.role = role;
        return;
      }
    Fail("unknown role");
  }
  int ReadOutput(const std::string& name, const Op& op) {
    const Type type = ReadType();
    const std::string layout = TakeLayoutList();
    if (const int id = graph_.FindOrNone(name); id >= 0) {
      if (graph_.value(id).type != type) Fail(fmt::format("{} was declared with another type", name));
      return id;
    }
    const int id = graph_.AddValue({name, type, ValueKind::kActivation, op.frequency(), op.chunk, -1, layout});
    if (op.kind == OpKind::kCopyIn) graph_.value(id).piece = PieceOf(op);
    if (op.kind == OpKind::kCopyOut) graph_.value(id).space = Space::kHost;
    return id;
  }

  Graph& graph_;
  std::string_view rest_, line_;
  int number_;
};

}  // namespace

std::string Print(const Graph& graph) {
  std::string text;
  for (const Value& v : graph.values)
    if (v.kind != ValueKind::kActivation)
      text += fmt::format("value {} : {} {} {} chunk {}{}{}{}\n", v.name, ToString(v.type), Name(v.kind),
                          v.frequency == Frequency::kStep ? "step" : "microbatch", ChunkText(v.chunk),
                          v.trained ? "" : " untrained", v.space == Space::kHost ? " host" : "", LayoutText(v));
  for (const Op& op : graph.ops) text += OpText(graph, op);
  for (int id : graph.results) text += "result " + graph.value(id).name + "\n";
  return text;
}

Graph ParseGraph(std::string_view text) {
  Graph graph;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const size_t n = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, n);
    text.remove_prefix(std::min(n + 1, text.size()));
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    if (!line.empty() && line.front() != '#') LineReader(graph, line, number).Read();
  }
  return graph;
}

}  // namespace espalier
