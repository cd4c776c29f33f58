// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/replay/numbers.hpp"

namespace kvferry::replay {
namespace {

// About the pixels that the page gives them, so that text keeps its size.
constexpr double kWidth = 560, kWide = 1080;
constexpr double kLeft = 64, kRight = 24, kTop = 12;  // margins of a plot
constexpr double kTitle = 44;                         // below it: tick labels and the axis label
constexpr double kNames = 226;                        // the left margin of charts with rows

// "0", "2.5 k", "40 GB": a tick's value has few digits.
std::string tick_text(double value, const std::string& unit) {
  constexpr std::array kPrefixes{"", "k", "M", "G", "T", "P", "E"};
  std::size_t i = 0;
  while (std::abs(value) >= 1000 && i + 1 < kPrefixes.size() && unit != "%") {
    value /= 1000;
    ++i;
  }
  const std::string suffix = kPrefixes[i] + unit;
  return fmt::format("{:.4g}{}{}", value, suffix.empty() ? "" : " ", suffix);
}

std::string duration_text(double us) {
  const bool seconds = us >= 1e6, milliseconds = us >= 1e3;
  return fmt::format("{:g} {}",
                     us / (seconds        ? 1e6
                           : milliseconds ? 1e3
                                          : 1),
                     seconds        ? "s"
                     : milliseconds ? "ms"
                                    : "us");
}

// A scale from 0 to a round number, with 3 to 6 steps of 1, 2 or 5 times a power of ten.
struct Scale {
  double end = 1, step = 1;

  explicit Scale(double most) {
    if (!(most > 0)) return;
    step = std::pow(10, std::floor(std::log10(most / 3)));
    if (most / step > 15) {
      step *= 5;
    } else if (most / step > 6) {
      step *= 2;
    }
    end = step * std::ceil(most / step * (1 - 1e-9));
  }
};

std::string text(double x, double y, const char* anchor, const char* css, std::string_view content) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)", x, y, anchor,
                     css, escape_html(content));
}

std::string vertical(double x, double top, double bottom, const char* css) {
  return fmt::format(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}" class="{3}"/>)", x, top,
                     bottom, css);
}

// Grid, tick labels and label of a horizontal axis below a plot.
std::string x_axis_svg(const Axis& axis, const Scale& scale, double left, double right, double top,
                       double bottom) {
  std::string s;
  constexpr double kLabel = 52;  // "200 GB" and some air
  const double step = scale.step * ((right - left) * scale.step / scale.end < kLabel ? 2 : 1);
  for (double v = 0; v <= scale.end * (1 + 1e-9); v += step) {
    const double x = left + (right - left) * v / scale.end;
    s += vertical(x, top, bottom, "grid");
    s += text(x, bottom + 16, "middle", "axis", tick_text(v, axis.unit));
  }
  return s + text((left + right) / 2, bottom + 36, "middle", "axis", axis.label);
}

std::string svg(double width, double height, const std::string& label, const std::string& content) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>\n", width, height,
                     escape_html(label), content);
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string line_chart(const Axis& x_axis, const Axis& y_axis, std::span<const double> x,
                       std::span<const Line> lines) {
  constexpr double kHeight = 260, kBottom = kHeight - kTitle, kEnd = kWidth - kRight;
  double most_y = y_axis.least_end;
  std::vector<double> stack(x.size());
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double y = line.filled ? stack[i] += line.y[i] : line.y[i];
      most_y = std::max(most_y, y);
    }
  }
  const Scale up(most_y);
  Scale across(x.empty() ? 0 : x.back());
  if (!x.empty() && x.back() > 0) across.end = x.back();  // not further than the data
  const auto px = [&](double v) { return kLeft + (kEnd - kLeft) * v / across.end; };
  const auto py = [&](double v) { return kBottom - (kBottom - kTop) * v / up.end; };

  std::string s = x_axis_svg(x_axis, across, kLeft, kEnd, kBottom, kBottom + 4);
  for (double v = 0; v <= up.end * (1 + 1e-9); v += up.step) {
    s += fmt::format(R"(<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" class="grid"/>)", kLeft, kEnd, py(v),
                     py(v));
    s += text(kLeft - 8, py(v) + 4, "end", "axis", tick_text(v, y_axis.unit));
  }
  std::fill(stack.begin(), stack.end(), 0);
  std::string legend;
  for (const Line& line : lines) {
    std::string top, base;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double below = line.filled ? stack[i] : 0;
      if (line.filled) base.insert(0, fmt::format("L{:.1f} {:.1f}", px(x[i]), py(below)));
      top += fmt::format("{}{:.1f} {:.1f}", i == 0 ? 'M' : 'L', px(x[i]), py(below + line.y[i]));
      if (line.filled) stack[i] += line.y[i];
    }
    if (line.filled && !x.empty())
      s += fmt::format(R"(<path d="{}{}Z" class="area c{}"/>)", top, base, line.colour);
    s += fmt::format(
        R"(<path d="{}" class="line c{}" data-name="{}" data-x="{}" data-y="{}"><title>{}</title></path>)",
        top, line.colour, escape_html(line.name), fmt::join(x, " "), fmt::join(line.y, " "),
        escape_html(line.name));
    legend += fmt::format(R"(<span><i class="c{}"></i>{}</span>)", line.colour, escape_html(line.name));
  }
  return "<p class=\"legend\">" + legend + fmt::format("<em>{}</em></p>\n", escape_html(y_axis.label)) +
         svg(kWidth, kHeight, y_axis.label, s);
}

std::string bar_chart(const Axis& axis, std::span<const Bar> bars, double limit,
                      const std::string& limit_name) {
  constexpr double kRow = 30, kBar = 16, kNote = 90, kEnd = kWidth - kNote;
  const double top = limit > 0 ? 24 : 4, bottom = top + kRow * static_cast<double>(bars.size());
  double most = std::max(limit, axis.least_end);
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  const Scale scale(most);
  const auto px = [&](double v) { return kNames + (kEnd - kNames) * v / scale.end; };
  std::string s = x_axis_svg(axis, scale, kNames, kEnd, top, bottom);
  double y = top;
  for (const Bar& bar : bars) {
    s += text(kNames - 10, y + kRow / 2 + 4, "end", "name", bar.name);
    s += fmt::format(
        R"(<rect x="{}" y="{:.1f}" width="{:.1f}" height="{}" rx="2" class="bar c0" data-name="{}" data-value="{}">)"
        "<title>{}: {}</title></rect>",
        kNames, y + (kRow - kBar) / 2, std::max(px(bar.value) - kNames, 0.5), kBar, escape_html(bar.name),
        bar.value, escape_html(bar.name), escape_html(bar.note));
    s += text(kWidth - 4, y + kRow / 2 + 4, "end", "note", bar.note);
    y += kRow;
  }
  if (limit > 0) {
    s += vertical(px(limit), top - 4, bottom, "limit");
    s += text(px(limit), top - 10, "middle", "note", limit_name);
  }
  return svg(kWidth, bottom + kTitle, axis.label, s);
}

std::string distribution_chart(const std::string& label, std::span<const Distribution> rows) {
  constexpr double kRow = 54, kHill = 40, kEnd = kWide - 24;
  const double top = 8, bottom = top + kRow * static_cast<double>(rows.size());
  double least = INFINITY, most = 0;
  for (const Distribution& row : rows) {
    for (const auto& b : row.buckets) {
      least = std::min(least, b.from);
      most = std::max(most, b.to);
    }
  }
  const double first = std::floor(std::log10(std::max(least, 1e-3))), last = std::ceil(std::log10(most));
  if (!(first < last)) return svg(kWide, bottom, label, "");
  const auto px = [&](double v) {
    return kNames + (kEnd - kNames) * (std::log10(std::max(v, 1e-3)) - first) / (last - first);
  };
  std::string s;
  for (double decade = first; decade <= last; ++decade) {
    const double v = std::pow(10, decade);
    s += vertical(px(v), top, bottom, "grid");
    s += text(px(v), bottom + 16, "middle", "axis", duration_text(v));
  }
  s += text((kNames + kEnd) / 2, bottom + 36, "middle", "axis", label);
  double floor = top;
  for (const Distribution& row : rows) {
    floor += kRow;
    double highest = 0;
    for (const auto& b : row.buckets) highest = std::max(highest, b.count);
    std::string edges, counts;
    for (const auto& b : row.buckets) {
      const double height = highest > 0 ? kHill * b.count / highest : 0;
      edges += fmt::format("M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}V{1:.1f}Z", px(b.from), floor, floor - height,
                           px(b.to));
      counts += fmt::format("{}{} {} {}", counts.empty() ? "" : " ", b.from, b.to, b.count);
    }
    s += text(kNames - 10, floor - 16, "end", "name", row.name);
    s += text(kNames - 10, floor - 2, "end", "axis",
              fmt::format("median {:.1f}, p99 {:.1f} us", row.median, row.p99));
    s += fmt::format(
        R"(<path d="{}" class="bar c0" data-name="{}" data-buckets="{}"><title>{}</title></path>)", edges,
        escape_html(row.name), counts, escape_html(row.name));
    if (row.buckets.empty()) continue;
    s += vertical(px(row.median), floor - kHill, floor, "limit");
    s += vertical(px(row.p99), floor - kHill, floor, "limit");
  }
  return svg(kWide, bottom + kTitle, label, s);
}

}  // namespace kvferry::replay
