// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/html.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "tools/replay/chart.hpp"
#include "tools/replay/print.hpp"

namespace kvferry::replay {
namespace {

using nlohmann::json;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #14181f; --soft: #5b6573; --rule: #e3e7ec;
  --c0: #2a6fdb; --c1: #e0701b; --c2: #12936f; --limit: #14181f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #12151a; --card: #1b2027; --ink: #e8ebef; --soft: #9aa5b3;
  --rule: #2d343e; --c0: #5b9bff; --c1: #f39a4f; --c2: #3cc79d; --limit: #e8ebef; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0 0 4px; }
p { margin: 0 0 12px; color: var(--soft); }
.failed { border: 2px solid var(--bad); border-radius: 10px; padding: 12px 16px; color: var(--bad);
  font-weight: 600; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; margin: 20px 0; }
.tiles div, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tiles div { padding: 12px 16px; color: var(--soft); font-size: 13px; }
.tiles b { display: block; color: var(--ink); font-size: 22px; line-height: 1.3; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 12px; }
section { padding: 16px 18px; min-width: 0; } .wide { margin-top: 12px; overflow-x: auto; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg .name, svg .note { fill: var(--ink); }
.grid { stroke: var(--rule); } .limit { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 4 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .area { opacity: .22; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.area.c0, .bar.c0 { fill: var(--c0); } .area.c1 { fill: var(--c1); } .area.c2 { fill: var(--c2); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; margin: 4px 0; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
i.c0 { background: var(--c0); } i.c1 { background: var(--c1); } i.c2 { background: var(--c2); }
.legend em { margin-left: auto; font-style: normal; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
)";

double number(const json& value) {
  return value.get<double>();
}
std::string word(const json& value) {
  return escape_html(value.get<std::string>());
}
std::vector<double> column(const json& series, const char* name) {
  return series.at(name).get<std::vector<double>>();
}
std::string name_of(const json& call) {
  return call.at("operator").get<std::string>() + " " + call.at("purpose").get<std::string>();
}

std::string tile(const std::string& value, const std::string& meaning) {
  return fmt::format("<div><b>{}</b>{}</div>\n", value, meaning);
}

std::string section(const char* title, const std::string& explanation, const std::string& content,
                    const char* css = "") {
  return fmt::format("<section class=\"{}\"><h2>{}</h2><p>{}</p>\n{}</section>\n", css, title, explanation,
                     content);
}

// What the device holds.
std::string device(const json& r) {
  if (!r.contains("selection")) {
    return fmt::format("Device pool {} tokens", print_metric(number(r.at("options").at("device_tokens"))));
  }
  const json& selection = r.at("selection");
  return fmt::format("Device: {} selection caches of {} tokens", selection.at("requests").dump(),
                     print_thousands(selection.at("tokens_per_request")));
}

std::string head(const json& r) {
  const json& model = r.at("model");
  const json& trace = r.at("trace");
  const json& options = r.at("options");
  std::string s = fmt::format(
      "<h1>kvferry replay: {}</h1>\n<p>tp {}, {} of {} layers, {} bytes of KV a token here, pages of {} "
      "tokens. "
      "Trace {}: {} requests, {} prompt tokens. {}, host pool {} tokens. {} threads.</p>\n",
      word(model.at("name")), model.at("tp").dump(), model.at("run_layers").dump(), model.at("layers").dump(),
      model.at("bytes_per_token").dump(), options.at("block").dump(), word(trace.at("name")),
      print_thousands(trace.at("requests")), print_metric(number(trace.at("prompt_tokens"))), device(r),
      print_metric(number(options.at("host_tokens"))), r.at("machine").at("threads").dump());
  if (!r.at("error").is_null()) {
    s += fmt::format("<p class=\"failed\">FAILED: {}<br>The numbers below are of what ran before.</p>\n",
                     word(r.at("error")));
  }
  return s;
}

std::string tiles(const json& r) {
  const json& cache = r.at("cache");
  double bytes = 0;
  std::int64_t mismatches = 0, verified = 0;
  for (const json& call : r.at("calls")) {
    bytes += number(call.at("bytes"));
    mismatches += call.at("mismatched_rows").get<std::int64_t>();
    verified += call.at("verified_bytes").get<std::int64_t>();
  }
  std::string s = tile(fmt::format("{:.2f} %", number(cache.at("hit_percent"))), "prefix hits");
  s += tile(print_metric(number(cache.at("hit_tokens"))), "prefill tokens saved");
  s += tile(print_metric(bytes, "B"), "moved by the operators");
  s += tile(print_thousands(mismatches),
            fmt::format("mismatched rows in {} checked", print_metric(verified, "B")));
  s += tile(
      print_seconds(number(r.at("seconds").at("elapsed"))),
      fmt::format("elapsed, {} in the operators", print_seconds(number(r.at("seconds").at("operators")))));
  s += tile(print_gibibytes(r.at("peak_memory_bytes")), "peak memory");
  if (r.contains("selection")) {
    const json& selection = r.at("selection");
    s += tile(fmt::format("{:.2f} %", number(selection.at("hit_percent"))),
              "selected tokens still in fast memory");
    s += tile(fmt::format("{:.1f} x", number(selection.at("memory_ratio"))),
              "less fast memory than the full cache");
  }
  return "<div class=\"tiles\">\n" + s + "</div>\n";
}

std::string rates(const json& r) {
  std::vector<Bar> rates, bytes;
  for (const json& call : r.at("calls")) {
    rates.push_back({name_of(call), number(call.at("gb_per_second")),
                     fmt::format("{:.2f} GB/s", number(call.at("gb_per_second")))});
    bytes.push_back({name_of(call), number(call.at("bytes")), print_metric(number(call.at("bytes")), "B")});
  }
  const double limit = number(r.at("machine").at("copy_limit_gb_per_second"));
  return section(
             "GB/s of each operator",
             "Payload, counted once, over the time in the operator. The line is what a plain copy of cold "
             "memory reaches with the same threads.",
             bar_chart({"GB/s", "", 0}, rates, limit, fmt::format("copy limit {:.1f} GB/s", limit))) +
         section("Bytes of each operator", "Payload, counted once, of the layers and heads of this run.",
                 bar_chart({"bytes", "B", 0}, bytes, 0, ""));
}

std::string over_time(const json& r) {
  const json& series = r.at("series");
  const json& options = r.at("options");
  const std::vector<double> steps = column(series, "steps"), requests = column(series, "requests");
  std::vector<Line> hits, pools;
  const auto tier = [&](const char* name, int colour, const char* tokens, const char* hit, const char* used) {
    if (number(options.at(tokens)) == 0) return;
    hits.push_back({fmt::format("{} hits", name), colour, column(series, hit), true});
    pools.push_back(
        {fmt::format("{} pool, with cached prefixes", name), colour, column(series, used), false});
  };
  tier("device", 0, "device_tokens", "device_hit_percent", "device_percent");
  tier("host", 1, "host_tokens", "host_hit_percent", "host_percent");
  pools.push_back({"running requests", 2, column(series, "running_percent"), false});
  return section("Prefix hits over requests", "Share of all prompt tokens so far that came from the cache.",
                 line_chart({"requests admitted", "", 0}, {"% of prompt tokens", "%", 0}, requests, hits)) +
         section("Pools over steps",
                 "Pages in use. A pool that is full of cached prefixes makes room by evicting.",
                 line_chart({"steps", "", 0}, {"% of the pool", "%", 100}, steps, pools));
}

std::string selection(const json& r) {
  if (!r.contains("selection")) return {};
  const json& selection = r.at("selection");
  const json& series = r.at("series");
  const std::vector<double> steps = column(series, "steps");
  const std::vector<Line> bytes{{"fetched", 0, column(series, "fetched_bytes"), false},
                                {"fetching all", 1, column(series, "fetch_all_bytes"), false}};
  const std::vector<Line> memory{
      {"selection caches", 0, column(series, "selection_memory_bytes"), false},
      {"full cache of the running requests", 1, column(series, "full_memory_bytes"), false}};
  const auto metric = [&](const char* key, const char* unit = "") {
    return print_metric(number(selection.at(key)), unit);
  };
  const json& wanted = selection.at("wanted_overlap_percent");
  return section(
             "What decode reads from the full cache",
             fmt::format(
                 "{} of {} ({:.1f} %): {} ids, {:.2f} % hits, {:.2f} % moved. Overlap of consecutive steps "
                 "{:.2f} %{}; ids from {}.",
                 metric("fetched_bytes", "B"), metric("fetch_all_bytes", "B"),
                 number(selection.at("fetched_percent")), metric("ids"), number(selection.at("hit_percent")),
                 number(selection.at("moved_percent")), number(selection.at("overlap_percent")),
                 wanted.is_null() ? "" : fmt::format(" ({:g} % wanted)", number(wanted)),
                 word(selection.at("source"))),
             line_chart({"steps", "", 0}, {"bytes so far", "B", 0}, steps, bytes)) +
         section(
             "Fast memory",
             fmt::format(
                 "At the peak {} for selection caches and {} for the full cache of {} tokens, which is on "
                 "the host here.",
                 metric("selection_memory_bytes", "B"), metric("full_memory_bytes", "B"),
                 metric("full_memory_tokens")),
             line_chart({"steps", "", 0}, {"bytes", "B", 0}, steps, memory));
}

std::string latencies(const json& r) {
  std::vector<Distribution> rows;
  for (const json& call : r.at("calls")) {
    Distribution row{name_of(call), {}, number(call.at("median_us")), number(call.at("p99_us"))};
    for (const json& bin : call.at("latency")) {
      row.buckets.push_back({number(bin.at("from_us")), number(bin.at("to_us")), number(bin.at("calls"))});
    }
    rows.push_back(std::move(row));
  }
  return section("Latency of a call", "How many calls took how long; dashed: median and p99.",
                 distribution_chart("time of a call, logarithmic", rows), "wide");
}

std::string table(const json& r) {
  const bool link = number(r.at("options").at("link_gb_per_second")) > 0;
  std::string s =
      "<table><thead><tr><th>operator</th><th>calls</th><th>tokens</th><th>GB</th><th>GB/s</th><th>% "
      "limit</th>"
      "<th>median us</th><th>p99 us</th><th>verified %</th><th>mismatches</th>";
  if (link) {
    s += fmt::format("<th>modelled at {} GB/s</th>", r.at("options").at("link_gb_per_second").dump());
  }
  s += "</tr></thead><tbody>\n";
  for (const json& call : r.at("calls")) {
    s += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.1f}</td><td>{:.1f}</td>"
        "<td>{:.1f}</td><td>{:.1f}</td><td>{}</td>",
        escape_html(name_of(call)), call.at("calls").dump(), call.at("tokens").dump(),
        number(call.at("bytes")) / 1e9, number(call.at("gb_per_second")), number(call.at("percent_of_limit")),
        number(call.at("median_us")), number(call.at("p99_us")), number(call.at("verified_percent")),
        call.at("mismatched_rows").dump());
    if (link) {
      const auto seconds = call.find("modelled_link_seconds");
      s += seconds == call.end() ? "<td></td>" : fmt::format("<td>{}</td>", print_seconds(number(*seconds)));
    }
    s += "</tr>\n";
  }
  return section("All calls", word(r.at("machine").at("tiers")) + ".", s + "</tbody></table>\n", "wide");
}

std::string whole_model(const json& r) {
  const json& whole = r.at("whole_model");
  std::string s;
  const auto row = [&](const std::string& name, const json& bytes) {
    s +=
        fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_html(name), print_metric(number(bytes), "B"));
  };
  for (const auto& [name, bytes] : whole.at("bytes").items()) row(name, bytes);
  row("saved by prefix hits", whole.at("bytes_saved"));
  row(r.contains("selection") ? "selection caches" : "device pool", whole.at("device_bytes"));
  row("host pool", whole.at("host_bytes"));
  if (r.contains("selection")) {
    const json& selection = r.at("selection").at("whole_model");
    row("fetched for decode", selection.at("fetched_bytes"));
    row("fetching all for decode", selection.at("fetch_all_bytes"));
    row("full cache of the running requests", selection.at("full_memory_bytes"));
  }
  return section("The whole model",
                 fmt::format("All layers and ranks: {:g} times this run.", number(whole.at("factor"))),
                 "<table><tbody>\n" + s + "</tbody></table>\n", "wide");
}

// Inside <script>, where a browser only looks for the end tag.
std::string embedded(const json& r) {
  std::string text = r.dump(-1, ' ', false, json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return "<script type=\"application/json\" id=\"report\">" + text + "</script>\n";
}

}  // namespace

std::string to_html(const json& r) {
  return fmt::format(
             "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
             "<title>kvferry replay: {}</title><style>",
             word(r.at("model").at("name"))) +
         kStyle + "</style></head><body><main>\n" + head(r) + tiles(r) + "<div class=\"charts\">\n" +
         rates(r) + over_time(r) + selection(r) + "</div>\n" + latencies(r) + table(r) + whole_model(r) +
         embedded(r) + "</main></body></html>\n";
}

}  // namespace kvferry::replay
