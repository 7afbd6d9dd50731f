#include "tools/eval/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace pith {

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string policy_html(std::string_view policy) {
  std::string out;
  for (size_t i = 0; i < policy.size(); ++i) {
    out += escape_html(policy.substr(i, 1));
    if (std::string_view("()+,_=").find(policy[i]) != std::string_view::npos) out += "<wbr>";
  }
  return out;
}

std::string figure(double x, int digits) {
  if (x == 0) return "0";
  if (!std::isfinite(x)) return fmt::format("{}", x);
  const auto place = static_cast<int>(std::floor(std::log10(std::fabs(x))));
  if (place < -4 || place > 5) return fmt::format("{:.{}e}", x, digits - 1);
  return fmt::format("{:.{}f}", x, std::max(0, digits - 1 - place));
}

std::string figure(const Estimate& e) {
  if (!(e.error > 0) || !std::isfinite(e.error)) return figure(e.mean);
  const auto place = static_cast<int>(std::floor(std::log10(e.error)));
  if (place < -5) return fmt::format("{} ±{:.1e}", figure(e.mean), e.error);
  const int decimals = std::clamp(1 - place, 0, 6);
  return fmt::format("{:.{}f} ±{:.{}f}", e.mean, decimals, e.error, decimals);
}

std::string percent(double share) {
  if (share == 0) return "0%";
  if (share == 1) return "100%";
  if (std::fabs(share) < 0.0005) return fmt::format("{}%", figure(100 * share, 1));
  return fmt::format("{:.1f}%", share > 0.9995 && share < 1 ? 99.9 : 100 * share);
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) bytes /= 1000, ++unit;
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", bytes, decimals, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return figure(seconds * 1e6) + " µs";
  if (seconds < 1) return figure(seconds * 1e3) + " ms";
  return figure(seconds) + " s";
}

}  // namespace pith
