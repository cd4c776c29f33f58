// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tools/replay/print.hpp"

namespace kvferry::replay {
namespace {

// "avx2"; more than one where the operators differ.
std::string implementations(const Report& r) {
  std::set<std::string> names;
  for (const Call call : calls_of(r.selects())) {
    if (r.calls[call].calls > 0) names.insert(r.calls[call].implementation);
  }
  return names.empty() ? "not called" : fmt::format("{}", fmt::join(names, ", "));
}

std::string selection_lines(const Report& r) {
  const SelectionTotals& s = r.selection;
  const Options& o = r.options;
  std::string t = fmt::format(
      "selection of {} tokens: {} ids, hits {:.2f} %, moved {:.2f} %   fetched {} of the {} that fetching "
      "all takes "
      "({:.1f} %)\n",
      print_thousands(o.select), print_metric(s.ids), percent(s.hits, s.ids), percent(s.moved, s.ids),
      print_metric(r.selected_bytes(s.fetched), "B"), print_metric(r.selected_bytes(s.ids), "B"),
      percent(s.fetched, s.ids));
  t += fmt::format("overlap of consecutive steps measured {:.2f} %",
                   percent(s.free_common, s.free_pairs * o.select));
  if (o.topk.empty()) {
    t += fmt::format(", wanted {:g} % ({} pairs of {}; {:.2f} % with those of sequences too short to choose)",
                     o.overlap, print_metric(s.free_pairs), print_metric(s.pairs),
                     percent(s.common, s.pairs * o.select));
  }
  const std::int64_t memory = r.device_bytes(), full = r.full_memory(r.counts.most_running_pages);
  t += fmt::format(
      "\nfast memory: selection caches {}   the full cache of the running requests would take {} ({} tokens "
      "at the "
      "peak), {:.1f} x\n",
      print_gibibytes(memory), print_gibibytes(full), print_metric(r.counts.most_running_pages * o.block),
      memory > 0 ? static_cast<double>(full) / static_cast<double>(memory) : 0);
  return t;
}

}  // namespace

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
  t += fmt::format("device {}, {}   host {} tokens, {}   {} bytes a token here   operators {}{}\n",
                   r.selects() ? fmt::format("{} selection caches of {} tokens", c.max_running,
                                             print_thousands(Selector::cache_tokens(o.select)))
                               : print_metric(r.device_tokens()) + " tokens",
                   print_gibibytes(r.device_bytes()), print_metric(r.host_tokens()),
                   print_gibibytes(r.host_tokens() * r.token_bytes()), r.token_bytes(), implementations(r),
                   model.mla ? "   MLA: tp does not divide the latent row, every rank holds all of it" : "");

  const bool link = o.link_gbps > 0;
  t += fmt::format("\n{:<28} {:>9} {:>9} {:>9} {:>7} {:>8} {:>10} {:>10} {:>9} {:>11}", "operator", "calls",
                   "tokens", "GB", "GB/s", "% limit", "median us", "p99 us", "verified", "mismatches");
  if (link) t += fmt::format("  {:>22}", fmt::format("modelled at {:g} GB/s", o.link_gbps));
  t += '\n';
  for (const Call call : calls_of(r.selects())) {
    const CallStats& s = r.calls[call];
    t += fmt::format("{:<28} {:>9} {:>9} {:>9.2f} {:>7.2f} {:>8.1f} {:>10.1f} {:>10.1f} {:>7.1f} % {:>11}",
                     fmt::format("{} {}", operator_of(call), purpose_of(call)), s.calls,
                     print_metric(s.tokens), static_cast<double>(s.bytes) / 1e9, s.gigabytes_per_second(),
                     r.copy_limit() > 0 ? 100 * s.gigabytes_per_second() / r.copy_limit() : 0,
                     s.latency.quantile_ns(0.5) / 1e3, s.latency.quantile_ns(0.99) / 1e3,
                     percent(s.verified_calls, s.calls), s.mismatched_rows);
    if (const auto seconds = r.link_seconds(call)) t += fmt::format("  {:>22}", print_seconds(*seconds));
    t += '\n';
  }

  t += fmt::format(
      "\nprefix hits {:.2f} % (device {:.2f}, host {:.2f})   prefill tokens saved {}   bytes saved {}\n",
      percent(c.hit_tokens(), c.prompt_tokens), percent(c.device_hit_tokens, c.prompt_tokens),
      percent(c.host_hit_tokens, c.prompt_tokens), print_metric(c.hit_tokens()),
      print_metric(c.hit_tokens() * r.token_bytes(), "B"));
  t += r.selects()
           ? fmt::format("dropped {} tokens\n", print_metric(c.dropped_tokens))
           : fmt::format("evicted {} tokens   fetched back {}   dropped {}\n", print_metric(c.evicted_tokens),
                         print_metric(c.fetched_tokens), print_metric(c.dropped_tokens));
  if (r.selects()) t += selection_lines(r);
  t += fmt::format("requests {} finished, {} refused   most running {}   steps {}",
                   print_thousands(c.finished), r.refused.size(), c.max_running, print_thousands(c.steps));
  if (o.speed > 0) t += fmt::format(" (and {} idle of {:g} ms)", print_thousands(c.idle_steps), o.step_ms);
  t += '\n';
  if (!r.refused.empty()) {
    constexpr std::size_t kNamed = 5;
    t += fmt::format("refused, larger than the {} pool:", r.selects() ? "host" : "device");
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
  t += fmt::format("whole model ({} layers{}), x {:g}: ", model.layers,
                   r.shard.distinct_ranks() > 1 ? fmt::format(", {} ranks", r.shard.tp) : "", factor);
  t += fmt::format("scattered {}, gathered {}, ", bytes_of({Call::kScatterPrefill, Call::kScatterDecode}),
                   bytes_of({Call::kGather}));
  t += r.selects()
           ? fmt::format("fetched for decode {} of {}", whole(r.selected_bytes(r.selection.fetched)),
                         whole(r.selected_bytes(r.selection.ids)))
           : fmt::format("evicted {}, fetched {}", bytes_of({Call::kEvict}), bytes_of({Call::kFetch}));
  t += fmt::format(", saved {}; device {}, host {}\n", whole(c.hit_tokens() * r.token_bytes()),
                   whole(r.device_bytes()), whole(r.host_tokens() * r.token_bytes()));
  t += fmt::format("Both tiers are RAM on the CPU backend: {} at memory speed here, not at a link's.\n",
                   r.selects() ? "misses are read" : "evict and fetch run");
  if (!r.error.empty()) t += fmt::format("FAILED {}\n", r.error);
  std::string files;
  if (!o.html.empty()) files += fmt::format("report: {}", o.html);
  if (!o.json.empty()) files += fmt::format("{}json: {}", files.empty() ? "" : "   ", o.json);
  if (!files.empty()) t += files + '\n';
  return t;
}

}  // namespace kvferry::replay
