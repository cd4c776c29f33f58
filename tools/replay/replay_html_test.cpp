// SPDX-License-Identifier: Apache-2.0
//
// The page and its charts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/replay/chart.hpp"
#include "tools/replay/html.hpp"
#include "tools/replay/replay_testing.hpp"
#include "tools/replay/run.hpp"
#include "tools/replay/series.hpp"

namespace kvferry::replay {
namespace {

using nlohmann::json;

class ReplayHtml : public testing::Test {
 protected:
  ReplayHtml() : trace_("html <a&b>.jsonl", text()), html_("page.html"), json_("page.json") {
    options_.trace = trace_.path();
    options_.device_tokens = 8000;
    options_.host_tokens = 6000;
    options_.max_running = 5;
    options_.chunk = 100;
    options_.threads = 1;
    options_.link_gbps = 50;
    options_.measure_limit = false;
    options_.html = html_.path();
    options_.json = json_.path();
  }
  static std::string text() {
    harness::Random random(4);
    return print_trace(random_trace(random, 40, 7));
  }
  // Exit code, page and JSON of a run.
  int run() {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int exit_code = run_replay(options_);
    table_ = testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    page_ = read_file(html_.path());
    report_ = json::parse(read_file(json_.path()));
    return exit_code;
  }

  TempFile trace_, html_, json_;
  Options options_;
  std::string table_, page_;
  json report_;
};

TEST_F(ReplayHtml, RefersToNothingOutside) {
  ASSERT_EQ(run(), kExitOk);
  for (const char* outside :
       {"http", "src", "href", "<link", "url(", "@import", "<img", "<iframe", "<object", "<base", "onload"}) {
    EXPECT_EQ(page_.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(table_.find(fmt::format("\nreport: {}   json: {}\n", html_.path(), json_.path())),
            std::string::npos)
      << table_;
}

TEST_F(ReplayHtml, SaysWhatTheJsonSays) {
  ASSERT_EQ(run(), kExitOk);
  EXPECT_EQ(embedded_report(page_), report_);
  for (const json& call : report_["calls"]) {
    const std::string name = call["operator"].get<std::string>() + " " + call["purpose"].get<std::string>();
    const auto bars = data_attributes(page_, name, "data-value");
    ASSERT_EQ(bars.size(), 2U) << name;
    EXPECT_EQ(std::stod(bars[0]), call["gb_per_second"].get<double>());
    EXPECT_EQ(std::stod(bars[1]), call["bytes"].get<double>());
    const auto rows = data_attributes(page_, name, "data-buckets");
    ASSERT_EQ(rows.size(), 1U) << name;
    std::vector<double> expected;
    double calls = 0;
    for (const json& bin : call["latency"]) {
      for (const char* key : {"from_us", "to_us", "calls"}) expected.push_back(bin[key].get<double>());
      calls += expected.back();
      EXPECT_LT(bin["from_us"], bin["to_us"]);
    }
    EXPECT_EQ(parse_numbers(rows[0]), expected) << name;
    EXPECT_EQ(calls, call["calls"].get<double>());
    EXPECT_NE(page_.find(fmt::format("<td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td>", name,
                                     call["calls"].dump(), call["tokens"].dump(),
                                     call["bytes"].get<double>() / 1e9, call["gb_per_second"].get<double>())),
              std::string::npos)
        << name;
  }
  const json& series = report_["series"];
  const auto expect_line = [&](const char* name, const char* x, const char* y) {
    const auto xs = data_attributes(page_, name, "data-x"), ys = data_attributes(page_, name, "data-y");
    ASSERT_EQ(ys.size(), 1U) << name;
    EXPECT_EQ(parse_numbers(xs[0]), series[x].get<std::vector<double>>()) << name;
    EXPECT_EQ(parse_numbers(ys[0]), series[y].get<std::vector<double>>()) << name;
  };
  expect_line("device hits", "requests", "device_hit_percent");
  expect_line("host hits", "requests", "host_hit_percent");
  expect_line("running requests", "steps", "running_percent");
  expect_line("device pool, with cached prefixes", "steps", "device_percent");
  expect_line("host pool, with cached prefixes", "steps", "host_percent");
  // The series ends where the run did.
  EXPECT_EQ(series["steps"].back(), report_["requests"]["steps"]);
  EXPECT_EQ(series["requests"].back(), 40);
  EXPECT_EQ(series["host_hit_percent"].back(), report_["cache"]["host_hit_percent"]);
  EXPECT_NE(
      page_.find(fmt::format("<b>{:.2f} %</b>prefix hits", report_["cache"]["hit_percent"].get<double>())),
      std::string::npos);
}

TEST_F(ReplayHtml, EscapesNames) {
  ASSERT_EQ(run(), kExitOk);
  EXPECT_EQ(page_.find("<a&b>"), std::string::npos);
  EXPECT_NE(page_.find("html &lt;a&amp;b&gt;.jsonl"), std::string::npos);
  EXPECT_EQ(embedded_report(page_)["trace"]["name"], trace_.path());
  EXPECT_EQ(escape_html(R"(<b a="x" c='y'>&)"), "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;");
}

TEST_F(ReplayHtml, AFailedRunSaysSo) {
  options_.verify.all = true;
  options_.fault = Fault{.request = 0, .position = 0, .layer = 1, .part = Part::kKey, .byte = 3, .bits = 4};
  ASSERT_EQ(run(), kExitFailed);
  const std::string error = report_["error"].get<std::string>();
  EXPECT_EQ(error.rfind("mismatch: ", 0), 0U) << error;
  EXPECT_NE(page_.find("FAILED: " + error), std::string::npos) << error;
  EXPECT_NE(table_.find("FAILED " + error), std::string::npos) << table_;
  EXPECT_EQ(embedded_report(page_), report_);
}

TEST_F(ReplayHtml, NoneIsNowhere) {
  options_.html.clear();
  ASSERT_EQ(run(), kExitOk);
  EXPECT_EQ(page_, "");
  EXPECT_NE(table_.find(fmt::format("\njson: {}\n", json_.path())), std::string::npos) << table_;
}

TEST(ReplaySeries, IsBoundedEvenAndEndsAtTheEnd) {
  for (const std::int64_t steps : {1, 2, 511, 512, 513, 1024, 100'000}) {
    TimeSeries series(steps);
    for (std::int64_t s = 1; s <= steps; ++s) {
      Sample sample;
      sample.steps = s;
      series.add(sample);
    }
    const auto& points = series.points();
    EXPECT_LE(std::ssize(points), TimeSeries::kMostPoints) << steps;
    EXPECT_GE(std::ssize(points), std::min<std::int64_t>(steps, TimeSeries::kMostPoints / 2)) << steps;
    EXPECT_EQ(points.front().steps, 1);
    EXPECT_EQ(points.back().steps, steps);
    for (std::size_t i = 2; i + 1 < points.size(); ++i) {
      EXPECT_EQ(points[i].steps - points[i - 1].steps, points[1].steps - points[0].steps);
    }
  }
}

TEST(ReplayChart, DrawsNothingFromNothing) {
  const std::vector<Line> lines{{"empty", 0, {}, true}};
  EXPECT_NE(line_chart({"x", "", 0}, {"y", "", 0}, {}, lines).find("data-y=\"\""), std::string::npos);
  const std::vector<Distribution> rows{{"empty", {}, 0, 0}};
  EXPECT_EQ(distribution_chart("x", rows).find("nan"), std::string::npos);
  const std::vector<Bar> bars{{"zero", 0, ""}};
  EXPECT_NE(bar_chart({"x", "", 0}, bars, 0, "").find("data-value=\"0\""), std::string::npos);
}

TEST(ReplayChart, PutsPointsWhereTheAxisSays) {
  // 0 .. 10 across 632 pixels from 64 on, 0 .. 100 up 244 from 256.
  const std::vector<double> x{0, 5, 10};
  const std::vector<Line> lines{{"a", 0, {0, 50, 25}, true}, {"b", 1, {100, 50, 25}, true}};
  const std::string svg = line_chart({"x", "", 0}, {"y", "%", 0}, x, lines);
  EXPECT_NE(svg.find("d=\"M64.0 216.0L300.0 114.0L536.0 165.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("d=\"M64.0 12.0L300.0 12.0L536.0 114.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find(">100 %<"), std::string::npos) << svg;
}

}  // namespace
}  // namespace kvferry::replay
