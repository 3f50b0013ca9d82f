#include "timeline/picture/palette.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

struct Colour {
  int red = 0, green = 0, blue = 0;
};

constexpr ByJobKind<Colour> kColours = {
    Colour{0x77, 0x77, 0x77},  // P
    Colour{0x00, 0x66, 0xAA},  // F
    Colour{0x00, 0x99, 0x88},  // B
    Colour{0xDD, 0xCC, 0x77},  // W
    Colour{0x00, 0x99, 0x88},  // B and W
    Colour{0xAA, 0x44, 0x99},  // S
    Colour{0x55, 0x55, 0x55},  // U
};
constexpr ByJobKind<std::string_view> kLetters = {"P", "F", "B", "W", "BW", "S", "U"};
constexpr ByCommAxis<std::string_view> kAxisColours = {"#EE7733", "#882255", "#997700",
                                                       "#33AADD", "#4B4B9B", "#666633"};

/// Prefixes the selector of every rule, so that the rules apply only in this picture. No rule has a list of selectors.
std::string Scoped(std::string_view css) {
  std::string scoped;
  for (size_t begin = 0; begin < css.size();) {
    const size_t end = std::min(css.find('}', begin), css.size() - 1) + 1;
    scoped += css[begin] == '\n' ? "" : fmt::format(".timeline {}\n", css.substr(begin, end - begin));
    begin = css[begin] == '\n' ? begin + 1 : end;
  }
  return scoped;
}

/// For a dark screen. Bars keep their colours.
constexpr std::string_view kDark = R"(text{fill:#CCC}.title{fill:#EEE}.head{fill:#BBB}.small{fill:#AAA}.lane{fill:#999}
.page{fill:#16181C}.track{fill:#2A2E35;stroke:#444}.grid{stroke:#FFFFFF1A}.axis{stroke:#888}
.window{fill:#FFFFFF14;stroke:#AAA}.beam{stroke:#888}.phase{stroke:#888}.end{stroke:#EEE}.I{stroke:#2A2E35}
.compute{fill:#BBB}.idle{fill:#2A2E35;stroke:#888}
)";

/// Later chunks are lighter.
Colour Shade(Colour colour, int chunk, int chunks) {
  const double white = chunks > 1 ? 0.45 * chunk / (chunks - 1) : 0;
  const auto mix = [&](int value) { return static_cast<int>(std::lround(value + (255 - value) * white)); };
  return {mix(colour.red), mix(colour.green), mix(colour.blue)};
}

}  // namespace

std::string ClassOf(JobKind kind, int chunk) { return fmt::format("{}{}", kLetters[kind], chunk); }

/// By approximate relative luminance.
bool IsLight(JobKind kind, int chunk, int chunks) {
  const Colour c = Shade(kColours[kind], chunk, chunks);
  return 0.30 * c.red + 0.59 * c.green + 0.11 * c.blue > 140;
}

std::string_view LegendOf(JobKind kind) {
  constexpr ByJobKind<std::string_view> kWords = {"prepare (P)",         "forward (F)",        "input gradient (B)",
                                                  "weight gradient (W)", "backward (B and W)", "synchronize (S)",
                                                  "update (U)"};
  return kWords[kind];
}

std::string StyleSheet(int chunks, bool copies) {
  std::string css = R"(text{font-family:Helvetica,Arial,"DejaVu Sans",sans-serif;font-size:11px;fill:#333}
.title{font-size:18px;font-weight:bold;fill:#111}.head{font-size:12px;fill:#444}.small{font-size:9px;fill:#666}
.lane{font-size:7px;fill:#777}.name{font-weight:bold}.m{font-size:10px;fill:#fff}.md{font-size:10px;fill:#222}
.n{font-size:9px;fill:#fff}.nd{font-size:9px;fill:#222}
.h{font-size:10px;fill:#fff;stroke-width:3px;paint-order:stroke}
.hd{font-size:10px;fill:#222;stroke-width:3px;paint-order:stroke}
.page{fill:#F6F6F4}.track{fill:#fff;stroke:#DDD;stroke-width:.5}.grid{stroke:#00000014}.axis{stroke:#888}
.window{fill:#00000010;stroke:#555;stroke-width:.8;stroke-dasharray:4 3}
.beam{stroke:#999;stroke-width:.7;stroke-dasharray:4 3}
.phase{stroke:#888}.end{stroke:#111;stroke-width:1.2}.X{stroke:url(#hatch)}.I{stroke:#fff}.x{fill:url(#hatch)}
.compute{fill:#444}.idle{fill:#fff;stroke:#999;stroke-width:.6}
)";
  for (const JobKind kind : kJobKinds)
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const Colour c = Shade(kColours[kind], chunk, chunks);
      css += fmt::format(".{}{{stroke:#{:02X}{:02X}{:02X}}}", ClassOf(kind, chunk), c.red, c.green, c.blue);
    }
  for (const CommAxis axis : kAllCommAxes)
    if (axis != CommAxis::kHost || copies)
      css += fmt::format(".{0}{{stroke:{1}}}.{0}h{{stroke:{1};stroke-opacity:.4}}.{0}t{{fill:{1}}}", Name(axis),
                         kAxisColours[axis]);
  return fmt::format("{}@media screen and (prefers-color-scheme:dark){{\n{}}}\n", Scoped(css), Scoped(kDark));
}

}  // namespace espalier
