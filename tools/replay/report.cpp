// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/replay/print.hpp"

namespace kvferry::replay {
namespace {

using nlohmann::json;

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

double link_seconds(const CallStats& s, const Report& r) {
  return static_cast<double>(s.bytes) / (r.options.link_gbps * 1e9);
}

// "avx2"; more than one where the operators differ.
std::string implementations(const Report& r) {
  std::set<std::string> names;
  for (const Call call : kCalls) {
    if (r.calls[call].calls > 0) names.insert(r.calls[call].implementation);
  }
  return names.empty() ? "not called" : fmt::format("{}", fmt::join(names, ", "));
}

json call_json(Call call, const Report& r) {
  const CallStats& s = r.calls[call];
  json j = {
      {"operator", operator_of(call)},
      {"purpose", purpose_of(call)},
      {"implementation", s.implementation},
      {"calls", s.calls},
      {"tokens", s.tokens},
      {"bytes", s.bytes},
      {"seconds", seconds(s.ns)},
      {"gb_per_second", s.gigabytes_per_second()},
      {"percent_of_limit", r.copy_limit() > 0 ? 100 * s.gigabytes_per_second() / r.copy_limit() : 0},
      {"median_us", s.latency.quantile_ns(0.5) / 1e3},
      {"p90_us", s.latency.quantile_ns(0.9) / 1e3},
      {"p99_us", s.latency.quantile_ns(0.99) / 1e3},
      {"plans", s.plans},
      {"plan_seconds", seconds(s.plan_ns)},
      {"verified_calls", s.verified_calls},
      {"verified_percent", percent(s.verified_calls, s.calls)},
      {"verified_bytes", s.verified_bytes},
      {"mismatched_rows", s.mismatched_rows},
  };
  if (r.options.link_gbps > 0 && (call == Call::kEvict || call == Call::kFetch)) {
    j["modelled_link_seconds"] = link_seconds(s, r);
  }
  return j;
}

}  // namespace

double Report::operator_seconds() const {
  std::int64_t ns = 0;
  for (const Call call : kCalls) ns += calls[call].ns;
  return seconds(ns);
}

json to_json(const Report& r) {
  const Options& o = r.options;
  const Counts& c = r.counts;
  const double factor = r.whole_model_factor();
  json calls = json::array();
  for (const Call call : kCalls) calls.push_back(call_json(call, r));
  json refused = json::array();
  for (const Report::Refused& q : r.refused) refused.push_back({{"line", q.line}, {"tokens", q.tokens}});
  json whole_calls = json::object();
  for (const Call call : kCalls) {
    whole_calls[fmt::format("{} {}", operator_of(call), purpose_of(call))] =
        static_cast<double>(r.calls[call].bytes) * factor;
  }
  json j = {
      {"format", "kvferry-replay-1"},
      {"model",
       {{"name", r.shard.model.name},
        {"layers", r.shard.model.layers},
        {"kv_heads", r.shard.model.kv_heads},
        {"head_size", r.shard.model.head_size},
        {"dtype", to_string(r.shard.model.dtype)},
        {"mla", r.shard.model.mla},
        {"tp", r.shard.tp},
        {"run_layers", o.layers},
        {"run_heads", r.shard.heads},
        {"bytes_per_token_and_layer", r.shard.token_layer_bytes()},
        {"bytes_per_token", r.token_bytes()}}},
      {"options",
       {{"block", o.block},
        {"device_tokens", r.device_tokens()},
        {"host_tokens", r.host_tokens()},
        {"max_running", o.max_running},
        {"chunk", o.chunk},
        {"seed", o.seed},
        {"speed", o.speed},
        {"step_ms", o.step_ms},
        {"verify", o.verify.all ? json("all") : json(o.verify.percent)},
        {"link_gb_per_second", o.link_gbps}}},
      {"trace",
       {{"name", r.trace_name}, {"requests", r.trace_requests}, {"prompt_tokens", r.trace_prompt_tokens}}},
      {"machine",
       {{"threads", r.threads},
        {"copy_limit_gb_per_second", r.copy_limit()},
        {"copy_limit_before", r.copy_limit_before},
        {"copy_limit_after", r.copy_limit_after},
        {"copy_limit_method", r.copy_limit_method},
        {"tiers", "both tiers are RAM on the CPU backend"}}},
      {"calls", std::move(calls)},
      {"requests",
       {{"finished", c.finished},
        {"refused", std::move(refused)},
        {"most_running", c.max_running},
        {"steps", c.steps},
        {"idle_steps", c.idle_steps},
        {"prompt_tokens", c.prompt_tokens},
        {"computed_tokens", c.computed_tokens},
        {"generated_tokens", c.generated_tokens}}},
      {"cache",
       {{"hit_tokens", c.hit_tokens()},
        {"device_hit_tokens", c.device_hit_tokens},
        {"host_hit_tokens", c.host_hit_tokens},
        {"hit_percent", percent(c.hit_tokens(), c.prompt_tokens)},
        {"device_hit_percent", percent(c.device_hit_tokens, c.prompt_tokens)},
        {"host_hit_percent", percent(c.host_hit_tokens, c.prompt_tokens)},
        {"bytes_saved", c.hit_tokens() * r.token_bytes()},
        {"evicted_blocks", c.evicted_blocks},
        {"evicted_tokens", c.evicted_tokens},
        {"fetched_blocks", c.fetched_blocks},
        {"fetched_tokens", c.fetched_tokens},
        {"dropped_blocks", c.dropped_blocks},
        {"dropped_tokens", c.dropped_tokens},
        {"computed_twice_blocks", c.shared_blocks},
        {"recomputed_from_host_blocks", c.promoted_blocks}}},
      {"whole_model",
       {{"factor", factor},
        {"bytes_per_token", static_cast<double>(r.token_bytes()) * factor},
        {"bytes_saved", static_cast<double>(c.hit_tokens() * r.token_bytes()) * factor},
        {"device_bytes", static_cast<double>(r.device_tokens() * r.token_bytes()) * factor},
        {"host_bytes", static_cast<double>(r.host_tokens() * r.token_bytes()) * factor},
        {"bytes", std::move(whole_calls)}}},
      {"seconds",
       {{"elapsed", r.elapsed_seconds}, {"replay", r.replay_seconds}, {"operators", r.operator_seconds()}}},
      {"peak_memory_bytes", r.peak_memory},
  };
  if (r.mismatch) {
    const BadRow& row = r.mismatch->row;
    j["mismatch"] = {{"operator", operator_of(r.mismatch->call)},
                     {"purpose", purpose_of(r.mismatch->call)},
                     {"call", r.mismatch->number},
                     {"request", row.request},
                     {"prefix_block", row.hash_id},
                     {"layer", row.layer},
                     {"part", row.part == Part::kKey ? "key" : "value"},
                     {"position", row.position},
                     {"byte", row.byte},
                     {"expected", row.expected},
                     {"seen", row.seen}};
  }
  return j;
}

std::string to_table(const Report& r) {
  const Options& o = r.options;
  const Counts& c = r.counts;
  const Model& model = r.shard.model;
  std::string t = fmt::format(
      "model {} tp {}, {} of {} layers, block {}   trace {}: {} requests, {} prompt tokens   "
      "threads {}   copy limit {}\n",
      model.name, r.shard.tp, o.layers, model.layers, o.block, r.trace_name,
      print_thousands(r.trace_requests), print_metric(r.trace_prompt_tokens), r.threads,
      r.copy_limit() > 0 ? fmt::format("{:.1f} GB/s", r.copy_limit()) : "not measured");
  t += fmt::format("device {} tokens, {}   host {} tokens, {}   {} bytes a token here   operators {}{}\n",
                   print_metric(r.device_tokens()), print_gibibytes(r.device_tokens() * r.token_bytes()),
                   print_metric(r.host_tokens()), print_gibibytes(r.host_tokens() * r.token_bytes()),
                   r.token_bytes(), implementations(r),
                   model.mla ? "   MLA: tp does not divide the latent row, every rank holds all of it" : "");

  const bool link = o.link_gbps > 0;
  t += fmt::format("\n{:<28} {:>9} {:>9} {:>9} {:>7} {:>8} {:>10} {:>10} {:>9} {:>11}", "operator", "calls",
                   "tokens", "GB", "GB/s", "% limit", "median us", "p99 us", "verified", "mismatches");
  if (link) t += fmt::format("  {:>22}", fmt::format("modelled at {:g} GB/s", o.link_gbps));
  t += '\n';
  for (const Call call : kCalls) {
    const CallStats& s = r.calls[call];
    t += fmt::format("{:<28} {:>9} {:>9} {:>9.2f} {:>7.2f} {:>8.1f} {:>10.1f} {:>10.1f} {:>7.1f} % {:>11}",
                     fmt::format("{} {}", operator_of(call), purpose_of(call)), s.calls,
                     print_metric(s.tokens), static_cast<double>(s.bytes) / 1e9, s.gigabytes_per_second(),
                     r.copy_limit() > 0 ? 100 * s.gigabytes_per_second() / r.copy_limit() : 0,
                     s.latency.quantile_ns(0.5) / 1e3, s.latency.quantile_ns(0.99) / 1e3,
                     percent(s.verified_calls, s.calls), s.mismatched_rows);
    if (link && (call == Call::kEvict || call == Call::kFetch)) {
      t += fmt::format("  {:>22}", print_seconds(link_seconds(s, r)));
    }
    t += '\n';
  }

  t += fmt::format(
      "\nprefix hits {:.2f} % (device {:.2f}, host {:.2f})   prefill tokens saved {}   bytes saved {}\n",
      percent(c.hit_tokens(), c.prompt_tokens), percent(c.device_hit_tokens, c.prompt_tokens),
      percent(c.host_hit_tokens, c.prompt_tokens), print_metric(c.hit_tokens()),
      print_metric(c.hit_tokens() * r.token_bytes(), "B"));
  t += fmt::format("evicted {} tokens   fetched back {}   dropped {}\n", print_metric(c.evicted_tokens),
                   print_metric(c.fetched_tokens), print_metric(c.dropped_tokens));
  t += fmt::format("requests {} finished, {} refused   most running {}   steps {}",
                   print_thousands(c.finished), r.refused.size(), c.max_running, print_thousands(c.steps));
  if (o.speed > 0) t += fmt::format(" (and {} idle of {:g} ms)", print_thousands(c.idle_steps), o.step_ms);
  t += '\n';
  if (!r.refused.empty()) {
    constexpr std::size_t kNamed = 5;
    t += "refused, larger than the device pool:";
    for (std::size_t i = 0; i < std::min(kNamed, r.refused.size()); ++i) {
      t += fmt::format("{} line {} ({} tokens)", i > 0 ? "," : "", r.refused[i].line,
                       print_thousands(r.refused[i].tokens));
    }
    if (r.refused.size() > kNamed) t += fmt::format(" and {} more", r.refused.size() - kNamed);
    t += '\n';
  }
  const double share = r.replay_seconds > 0 ? 100 * r.operator_seconds() / r.replay_seconds : 0;
  t += fmt::format("peak memory {}   elapsed {}   operators {} ({:.0f} % of the replay)\n",
                   print_gibibytes(r.peak_memory), print_seconds(r.elapsed_seconds),
                   print_seconds(r.operator_seconds()), share);

  const double factor = r.whole_model_factor();
  const auto whole = [&](std::int64_t bytes) {
    return print_metric(static_cast<double>(bytes) * factor, "B");
  };
  const auto bytes_of = [&](std::initializer_list<Call> calls) {
    std::int64_t sum = 0;
    for (const Call call : calls) sum += r.calls[call].bytes;
    return whole(sum);
  };
  t += fmt::format(
      "whole model ({} layers{}), x {:g}: scattered {}, gathered {}, evicted {}, fetched {}, saved {}; "
      "device {}, host {}\n",
      model.layers, r.shard.distinct_ranks() > 1 ? fmt::format(", {} ranks", r.shard.tp) : "", factor,
      bytes_of({Call::kScatterPrefill, Call::kScatterDecode}), bytes_of({Call::kGather}),
      bytes_of({Call::kEvict}), bytes_of({Call::kFetch}), whole(c.hit_tokens() * r.token_bytes()),
      whole(r.device_tokens() * r.token_bytes()), whole(r.host_tokens() * r.token_bytes()));
  t += "Both tiers are RAM on the CPU backend: evict and fetch run at memory speed here, not at a link's.\n";
  if (!r.mismatch_text.empty()) t += fmt::format("MISMATCH {}\n", r.mismatch_text);
  if (!o.json.empty()) t += fmt::format("json: {}\n", o.json);
  return t;
}

}  // namespace kvferry::replay
