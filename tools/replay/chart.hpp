// SPDX-License-Identifier: Apache-2.0
//
// Charts as inline SVG. Colours, fonts and sizes are classes of the page's style: `c0`, `c1`, ... for series,
// `axis`, `grid`, `limit` and `note` for the rest. What is drawn is also in data-* attributes, in the digits
// of the JSON report, and in <title> elements, which browsers show under the pointer.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::replay {

// Text for HTML, in elements and in quoted attributes.
std::string escape_html(std::string_view text);

struct Axis {
  std::string label;
  std::string unit;      // behind tick labels, with a power of 1000 before it
  double least_end = 0;  // the axis reaches at least here
};

struct Line {
  std::string name;
  int colour = 0;  // class c0, c1, c2
  std::vector<double> y;
  bool filled = false;  // stacked on the filled ones before it
};
// Lines over x values that they share.
std::string line_chart(const Axis& x_axis, const Axis& y_axis, std::span<const double> x,
                       std::span<const Line> lines);

struct Bar {
  std::string name;
  double value;
  std::string note;  // beside the bar
};
// Horizontal bars. `limit` > 0: a line there, named.
std::string bar_chart(const Axis& axis, std::span<const Bar> bars, double limit,
                      const std::string& limit_name);

struct Distribution {
  struct Bucket {
    double from, to;
    double count;
  };
  std::string name;
  std::vector<Bucket> buckets;
  double median, p99;
};
// One row each, over one logarithmic axis of microseconds; heights are shares of the row's highest bucket.
std::string distribution_chart(const std::string& label, std::span<const Distribution> rows);

}  // namespace kvferry::replay
