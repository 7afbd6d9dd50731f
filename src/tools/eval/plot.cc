#include "tools/eval/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/eval/report_text.h"

namespace pith {
namespace {

constexpr double kWidth = 360, kHeight = 280;
constexpr double kLeft = 60, kRight = 346, kTop = 12, kBottom = 234;
constexpr double kBreak = 16;  // room for the mark "0" of a log axis
constexpr double kMarker = 4.2;
constexpr double kDigit = 6.4, kText = 12;  // of a number beside a point

/// From values to units of the drawing, with the marks of the axis.
class Scale {
 public:
  Scale(const PlotAxis& axis, std::vector<double> values, double from, double to)
      : log_(axis.log), from_(from), to_(to) {
    if (log_) {
      zero_ = std::ranges::any_of(values, [](double v) { return v <= 0; });
      std::erase_if(values, [](double v) { return v <= 0; });
    }
    if (values.empty()) values = {1};
    const auto [low, high] = std::ranges::minmax(values);
    low_ = log_ ? std::log10(low) : std::min(low, 0.0);
    high_ = log_ ? std::log10(high) : high;
    const double room = std::max(0.06 * (high_ - low_), log_ ? 0.08 : 1e-9);
    high_ += room;
    if (log_) low_ -= room;
    if (zero_) from_ += from < to ? kBreak : -kBreak;
    edge_ = from;
  }

  double operator()(double value) const {
    if (log_ && value <= 0) return edge_;
    const double v = log_ ? std::log10(value) : value;
    return from_ + (v - low_) / (high_ - low_) * (to_ - from_);
  }
  bool zero() const { return zero_; }

  /// Values with a mark: 1, 2, 5 times powers of ten, as many as leave room.
  std::vector<double> marks(size_t most) const {
    return log_ ? log_marks(most) : linear_marks(most);
  }

 private:
  std::vector<double> log_marks(size_t most) const {
    // From fine to coarse: steps within each power of ten, then whole powers, then some of them.
    static const std::vector<std::vector<double>> kSteps{
        {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8}, {1, 1.5, 2, 3, 5, 7}, {1, 2, 5}, {1, 3}, {1}};
    for (const int every : {1, 2, 3, 4, 6, 8})
      for (const auto& steps : kSteps) {
        if (every > 1 && steps.size() > 1) continue;
        std::vector<double> found;
        for (int p = static_cast<int>(std::floor(low_)); p <= high_; ++p)
          for (const double step : steps) {
            const double v = p + std::log10(step);
            if (v >= low_ && v <= high_ && p % every == 0)
              found.push_back(step * std::pow(10.0, p));
          }
        if (found.size() <= most) return found;
      }
    return {};
  }
  std::vector<double> linear_marks(size_t most) const {
    const double rough = (high_ - low_) / static_cast<double>(most);
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (double s : {1.0, 2.0, 5.0})
      if (s * power >= rough) {
        step = s * power;
        break;
      }
    std::vector<double> found;
    for (double i = std::ceil(low_ / step); i * step <= high_; ++i) found.push_back(i * step);
    return found;
  }

  bool log_, zero_ = false;
  double from_, to_, edge_ = 0, low_ = 0, high_ = 1;
};

std::string shape(size_t series, double x, double y, double r) {
  const auto at = [](double v) { return fmt::format("{:.1f}", v); };
  switch (series % 4) {
    case 0: return fmt::format("<circle cx='{}' cy='{}' r='{}'", at(x), at(y), at(r));
    case 1:
      return fmt::format("<rect x='{}' y='{}' width='{}' height='{}'", at(x - 0.9 * r),
                         at(y - 0.9 * r), at(1.8 * r), at(1.8 * r));
    case 2:
      return fmt::format("<path d='M{} {}L{} {}L{} {}Z'", at(x), at(y - 1.15 * r), at(x + 1.1 * r),
                         at(y + 0.85 * r), at(x - 1.1 * r), at(y + 0.85 * r));
    default:
      return fmt::format("<path d='M{} {}L{} {}L{} {}L{} {}Z'", at(x), at(y - 1.25 * r),
                         at(x + 1.25 * r), at(y), at(x), at(y + 1.25 * r), at(x - 1.25 * r), at(y));
  }
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& o) const {
    return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
  }
};

class Drawing {
 public:
  explicit Drawing(const Plot& plot)
      : plot_(plot),
        x_(plot.x, values(true), kLeft + 6, kRight),
        y_(plot.y, values(false), kBottom - 6, kTop) {}

  std::string text() {
    out_ = fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>", kWidth, kHeight,
                       escape_html(plot_.title + ". " + plot_.description));
    axes();
    for (const PlotPoint& p : plot_.points) taken_.push_back(around(x_(p.x), y_(p.y), p));
    for (const PlotLine& line : plot_.lines) draw(line);
    // Faint points first: those that matter lie above them.
    for (const bool front : {false, true})
      for (const PlotPoint& p : plot_.points)
        if (p.number.empty() != front) draw(p);
    for (const PlotPoint& p : plot_.points)
      if (!p.number.empty()) number(x_(p.x), y_(p.y), p.number);
    for (const PlotLine& line : plot_.lines)
      if (!line.number.empty() && !line.points.empty())
        number(x_(line.points.back().first), y_(line.points.back().second), line.number);
    return out_ + "</svg>";
  }

 private:
  std::vector<double> values(bool horizontal) const {
    std::vector<double> all;
    for (const PlotPoint& p : plot_.points) all.push_back(horizontal ? p.x : p.y);
    for (const PlotLine& line : plot_.lines)
      for (const auto& [x, y] : line.points) all.push_back(horizontal ? x : y);
    return all;
  }

  static Box around(double x, double y, const PlotPoint& p) {
    const double r = p.number.empty() ? 2 : kMarker;
    return {x - r, y - r, x + r, y + r};
  }

  void axes() {
    const auto mark = [&](double x, double y, const std::string& text, bool horizontal) {
      if (horizontal)
        out_ += fmt::format(
            "<path class='grid' d='M{:.1f} {}V{}'/><text class='mark' x='{:.1f}' "
            "y='{}' text-anchor='middle'>{}</text>",
            x, kTop, kBottom, std::min(x, kWidth - 3.5 * static_cast<double>(text.size())),
            kBottom + 15, escape_html(text));
      else
        out_ += fmt::format(
            "<path class='grid' d='M{} {:.1f}H{}'/><text class='mark' x='{}' "
            "y='{:.1f}' text-anchor='end'>{}</text>",
            kLeft, y, kRight, kLeft - 5, y + 4, escape_html(text));
    };
    for (double v : x_.marks(5)) mark(x_(v), 0, plot_.x.tick(v), true);
    for (double v : y_.marks(7)) mark(0, y_(v), plot_.y.tick(v), false);
    if (plot_.y.log && y_.zero()) mark(0, y_(0), "0", false);
    out_ += fmt::format(
        "<path class='axis' d='M{} {}V{}H{}'/><text class='label' x='{}' y='{}' "
        "text-anchor='middle'>{}</text><text class='label' transform='translate(11 {}) "
        "rotate(-90)' text-anchor='middle'>{}</text>",
        kLeft, kTop, kBottom, kRight, (kLeft + kRight) / 2, kHeight - 10,
        escape_html(plot_.x.label), (kTop + kBottom) / 2, escape_html(plot_.y.label));
  }

  void draw(const PlotLine& line) {
    std::string path;
    double last = 0;
    for (const auto& [x, y] : line.points) {
      if (line.steps && !path.empty()) path += fmt::format("L{:.1f} {:.1f}", x_(x), last);
      last = y_(y);
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_(x), last);
    }
    out_ += fmt::format("<path class='line {}' d='{}'><title>{}</title></path>",
                        line.steps ? "front" : fmt::format("c{}", line.series), path,
                        escape_html(line.title));
  }

  void draw(const PlotPoint& p) {
    const bool front = !p.number.empty();
    if (p.error > 0) {
      // On a log axis a bar that reaches 0 ends at the axis.
      const double low = p.y - p.error;
      const double end = plot_.y.log && low <= 0 ? kBottom : y_(low);
      out_ += fmt::format("<path class='bar c{}{}' d='M{:.1f} {:.1f}V{:.1f}'/>", p.series,
                          front ? "" : " faint", x_(p.x), std::max(y_(p.y + p.error), kTop),
                          std::min(end, kBottom));
    }
    out_ += fmt::format("{} class='c{}{}'><title>{}</title></{}>",
                        shape(p.series, x_(p.x), y_(p.y), front ? kMarker : 3.2), p.series,
                        front ? "" : " faint", escape_html(p.title),
                        std::array{"circle", "rect", "path", "path"}[p.series % 4]);
  }

  // The first place around a point where a number hides neither points nor numbers.
  void number(double x, double y, const std::string& text) {
    const double width = kDigit * static_cast<double>(text.size());
    Box best{};
    double far = 0;
    for (const double distance : {8.0, 13.0, 19.0, 27.0, 36.0}) {
      for (int turn = 0; turn < 12 && far == 0; ++turn) {
        // From above right, around.
        const double angle = (-0.25 + turn * (turn % 2 == 0 ? 1 : -1) / 12.0) * 2 * M_PI;
        const double cx = x + (distance + width / 4) * std::cos(angle);
        const double cy = y + distance * std::sin(angle);
        const Box box{cx - width / 2, cy - kText / 2 + 1, cx + width / 2, cy + kText / 2 - 1};
        const bool inside =
            box.left > kLeft && box.right < kWidth && box.top > 0 && box.bottom < kBottom;
        if (!inside || std::ranges::any_of(taken_, [&](const Box& b) { return b.meets(box); }))
          continue;
        best = box, far = distance;
      }
      if (far > 0) break;
    }
    if (far == 0) return;  // no room: the list below the plot and the table have it
    taken_.push_back(best);
    const double cx = (best.left + best.right) / 2, cy = (best.top + best.bottom) / 2;
    if (far > 13)
      out_ += fmt::format("<path class='lead' d='M{:.1f} {:.1f}L{:.1f} {:.1f}'/>", x, y, cx, cy);
    out_ += fmt::format("<text class='number' x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>",
                        cx, cy + 4, escape_html(text));
  }

  const Plot& plot_;
  Scale x_, y_;
  std::string out_;
  std::vector<Box> taken_;
};

}  // namespace

std::string marker_svg(size_t series) {
  return fmt::format(
      "<svg class='key' viewBox='0 0 14 14' aria-hidden='true'>{} class='c{}'/></svg>",
      shape(series, 7, 7, 5), series);
}

std::string plot_svg(const Plot& plot) {
  return plot.points.empty() && plot.lines.empty() ? "" : Drawing(plot).text();
}

std::string plot_file(const Plot& plot) {
  // Colours by value: converters to PDF know no custom properties.
  static constexpr std::string_view kStyle =
      "svg{background:#fff}text{font:11px 'DejaVu Sans',Arial,sans-serif;fill:#565e68}"
      ".label{font-size:11.5px;fill:#1b1f24}.number{font-weight:700;fill:#1b1f24}"
      ".grid{stroke:#ecece6;fill:none}.axis{stroke:#565e68;fill:none}"
      ".lead{stroke:#565e68;stroke-width:.6;fill:none}"
      ".c0{fill:#3a3f46;stroke:#3a3f46}.c1{fill:#1769c4;stroke:#1769c4}"
      ".c2{fill:#b45309;stroke:#b45309}.c3{fill:#0f7b52;stroke:#0f7b52}"
      "circle,rect{stroke:none}.line,.bar{fill:none}.line{stroke-width:1.6}"
      ".line.front{stroke:#8b3fb0;stroke-dasharray:4 3}.faint{opacity:.55}";
  const std::string svg = plot_svg(plot);
  const std::string_view head = "<svg ";
  if (!svg.starts_with(head)) return "";
  const size_t body = svg.find('>') + 1;
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' {}<title>{}</title>"
      "<style>{}</style>{}\n",
      kWidth, kHeight, svg.substr(head.size(), body - head.size()), escape_html(plot.title), kStyle,
      svg.substr(body));
}

std::string plot_csv(const Plot& plot) {
  std::string out =
      fmt::format("policy,\"{}\",\"{}\",error,on_front\n", plot.x.label, plot.y.label);
  for (const PlotPoint& p : plot.points)
    out += fmt::format("\"{}\",{:.9g},{:.9g},{:.9g},{}\n", p.name, p.x, p.y, p.error,
                       p.number.empty() ? 0 : 1);
  return out;
}

}  // namespace pith
