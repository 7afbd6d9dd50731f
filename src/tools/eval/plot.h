#pragma once
// Small SVG plots for the HTML report: points, lines, axes. Colours are CSS classes of the page
// (c0, c1, ...), so that they follow its light and dark themes; shapes tell series apart without
// colour. 360 units wide, so that text can be read on a phone.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace pith {

struct PlotAxis {
  std::string label;
  bool log = true;  ///< on a log axis values of 0 stand below a break, at the mark "0"
  std::string (*tick)(double) = nullptr;  ///< how a mark is written
};

struct PlotPoint {
  double x = 0, y = 0;
  size_t series = 0;
  std::string title;      ///< what a pointer over it shows, and screen readers say
  std::string number;     ///< drawn beside it; empty: none, and the point is faint
  std::string name = {};  ///< what was measured, for tables
  double error = 0;       ///< of y: a bar of as much above and below; 0: none
};

struct PlotLine {
  std::vector<std::pair<double, double>> points;
  size_t series = 0;
  std::string title;
  std::string number;  ///< drawn at its end
  bool steps = false;  ///< horizontal, then vertical: the border of a Pareto front
};

struct Plot {
  std::string title, description;
  PlotAxis x, y;
  std::vector<PlotPoint> points;
  std::vector<PlotLine> lines;
};

/// The marker of a series, as an SVG of its own for legends.
std::string marker_svg(size_t series);
/// Empty if there is nothing to draw.
std::string plot_svg(const Plot& plot);
/// The same as a file of its own, in the colours of the light theme.
std::string plot_file(const Plot& plot);
/// Its points as a table: name, x, y, error, and whether nothing beats it.
std::string plot_csv(const Plot& plot);

}  // namespace pith
