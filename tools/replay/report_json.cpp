// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvferry::replay {
namespace {

using nlohmann::json;

constexpr const char* kTiers =
    "Both tiers are RAM on the CPU backend: what crosses between them does so at memory speed here, not at a "
    "link's";

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e9;
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
      {"latency", json::array()},
  };
  for (const LatencyHistogram::Bin& bin : s.latency.bins()) {
    j["latency"].push_back({{"from_us", static_cast<double>(bin.from) / 1e3},
                            {"to_us", static_cast<double>(bin.to) / 1e3},
                            {"calls", bin.count}});
  }
  if (const auto link = r.link_seconds(call)) j["modelled_link_seconds"] = *link;
  return j;
}

// Columns of equal length.
json series_json(const Report& r) {
  json j;
  const Options& o = r.options;
  const std::int64_t device = o.device_tokens / o.block, host = o.host_tokens / o.block;
  for (const char* column : {"steps", "requests", "device_hit_percent", "host_hit_percent", "running_percent",
                             "device_percent", "host_percent"}) {
    j[column] = json::array();
  }
  for (const Sample& s : r.series.points()) {
    j["steps"].push_back(s.steps);
    j["requests"].push_back(s.admitted);
    j["device_hit_percent"].push_back(percent(s.device_hit_tokens, s.prompt_tokens));
    j["host_hit_percent"].push_back(percent(s.host_hit_tokens, s.prompt_tokens));
    j["running_percent"].push_back(percent(s.running_pages, o.pool_tokens() / o.block));
    j["device_percent"].push_back(percent(s.device_pages, device));
    j["host_percent"].push_back(percent(s.host_pages, host));
    if (!r.selects()) continue;
    j["fetched_bytes"].push_back(r.selected_bytes(s.fetched));
    j["fetch_all_bytes"].push_back(r.selected_bytes(s.selected));
    j["selection_memory_bytes"].push_back(r.selection_memory(s.running));
    j["full_memory_bytes"].push_back(r.full_memory(s.running_pages));
  }
  return j;
}

json selection_json(const Report& r) {
  const SelectionTotals& s = r.selection;
  const Options& o = r.options;
  const std::int64_t memory = r.device_bytes(), full = r.full_memory(r.counts.most_running_pages);
  return {
      {"k", o.select},
      {"source", o.topk.empty() ? "locality model" : o.topk},
      {"calls", r.calls[Call::kSelect].calls},
      {"ids", s.ids},
      {"hits", s.hits},
      {"misses", s.misses},
      {"moved", s.moved},
      {"hit_percent", percent(s.hits, s.ids)},
      {"moved_percent", percent(s.moved, s.ids)},
      {"fetched_bytes", r.selected_bytes(s.fetched)},
      {"fetch_all_bytes", r.selected_bytes(s.ids)},
      {"fetched_percent", percent(s.fetched, s.ids)},
      {"wanted_overlap_percent", o.topk.empty() ? json(o.overlap) : json()},
      {"overlap_percent", percent(s.free_common, s.free_pairs * o.select)},
      {"overlap_pairs", s.free_pairs},
      {"overlap_percent_of_all_pairs", percent(s.common, s.pairs * o.select)},
      {"all_overlap_pairs", s.pairs},
      {"requests", r.counts.max_running},
      {"tokens_per_request", Selector::cache_tokens(o.select)},
      {"selection_memory_bytes", memory},
      {"full_memory_tokens", r.counts.most_running_pages * o.block},
      {"full_memory_bytes", full},
      {"memory_ratio", memory > 0 ? static_cast<double>(full) / static_cast<double>(memory) : 0},
      {"whole_model",
       {{"fetched_bytes", static_cast<double>(r.selected_bytes(s.fetched)) * r.whole_model_factor()},
        {"fetch_all_bytes", static_cast<double>(r.selected_bytes(s.ids)) * r.whole_model_factor()},
        {"selection_memory_bytes", static_cast<double>(memory) * r.whole_model_factor()},
        {"full_memory_bytes", static_cast<double>(full) * r.whole_model_factor()}}},
  };
}

}  // namespace

json to_json(const Report& r) {
  const Options& o = r.options;
  const Counts& c = r.counts;
  const double factor = r.whole_model_factor();
  json calls = json::array();
  for (const Call call : calls_of(r.selects())) calls.push_back(call_json(call, r));
  json refused = json::array();
  for (const Report::Refused& q : r.refused) refused.push_back({{"line", q.line}, {"tokens", q.tokens}});
  json whole_calls = json::object();
  for (const Call call : calls_of(r.selects())) {
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
        {"tiers", kTiers}}},
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
        {"device_bytes", static_cast<double>(r.device_bytes()) * factor},
        {"host_bytes", static_cast<double>(r.host_tokens() * r.token_bytes()) * factor},
        {"bytes", std::move(whole_calls)}}},
      {"seconds",
       {{"elapsed", r.elapsed_seconds}, {"replay", r.replay_seconds}, {"operators", r.operator_seconds()}}},
      {"peak_memory_bytes", r.peak_memory},
      {"series", series_json(r)},
      {"error", r.error.empty() ? json() : json(r.error)},
  };
  if (r.selects()) j["selection"] = selection_json(r);
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

}  // namespace kvferry::replay
