// The style sheets and the script of the page: page.css, chart.css and page.js unchanged from the source tree.
#pragma once

namespace espalier {

extern const char* const kPageCss;
extern const char* const kChartCss;  ///< styles of charts, inside of the page and in files of their own
extern const char* const kPageScript;

}  // namespace espalier
