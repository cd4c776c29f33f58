// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/cli.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "tools/replay/options.hpp"
#include "tools/replay/run.hpp"

namespace kvferry::replay {
namespace {

constexpr const char* kDescription = R"(What would this traffic on this model cost and save here?

Replays a trace of requests through a continuous-batching scheduler with a prefix cache in two tiers (device, host)
and moves the KV of every step with the library's operators: scatter for new tokens, gather for cached prefixes, group
copies for eviction and fetching back. Prints calls, bytes, GB/s against the machine's copy limit, latencies, hit rates
and what the whole model would take, and writes a page with charts. Without options it is a demo of less than a minute.)";

constexpr const char* kFooter = R"(Integers take k, M, G (powers of 1024): --device-tokens 1M.
Examples:
  kvferry replay
  kvferry replay --trace FILE --device-tokens 1M --host-tokens 4M --verify all
  kvferry replay --model deepseek-v3.2 --layers 4 --device-bytes 2GiB --host-bytes 4GiB --link-gbps 50
  kvferry replay --model deepseek-v3.2 --select 2048 --requests 50
Exit status: 0 done, 1 a call failed or moved a wrong byte, 2 an option or the trace cannot be used.)";

}  // namespace

void add_replay_command(CLI::App& app, int& exit_code) {
  const auto texts = std::make_shared<OptionTexts>();
  const Options defaults;
  CLI::App* command = app.add_subcommand("replay", kDescription);
  command->footer(kFooter);
  // All values are taken as text: our own parser names the option, what was typed and what is allowed.
  const auto add = [&](const char* group, const char* name, std::string& text, const char* type,
                       std::string help) {
    command->add_option(name, text, std::move(help))->type_name(type)->group(group);
  };

  constexpr const char* kTraffic = "Traffic";
  add(kTraffic, "--trace", texts->trace, "FILE",
      "Requests, one JSON object a line: timestamp (ms), input_length, output_length (tokens), hash_ids (one "
      "for each "
      "512 tokens of the prompt, equal ids for equal prefixes). Default: a built-in generator of chat "
      "traffic");
  add(kTraffic, "--requests", texts->requests, "N",
      fmt::format("Only the first N requests. Default: all of a file, {} of the generator",
                  kGeneratedRequests));
  add(kTraffic, "--seed", texts->seed, "N",
      "Of the generator and of the choice of verified calls. Same seed, same schedule, same bytes. Default: "
      "1");
  add(kTraffic, "--speed", texts->speed, "X",
      "Admit a request only when steps * step-ms >= timestamp / X. Default: no clock, everything waits at "
      "the door");
  add(kTraffic, "--step-ms", texts->step_ms, "MS",
      fmt::format("What a step takes, for --speed. Default: {:g}", defaults.step_ms));

  constexpr const char* kModel = "Model";
  add(kModel, "--model", texts->model, "NAME", fmt::format("{}. Default: {}", model_names(), defaults.model));
  add(kModel, "--tp", texts->tp, "N",
      fmt::format(
          "Hold 1/N of the KV heads, as one rank of tensor parallelism does; N divides them. MLA models have "
          "one latent row that no N divides. Default: {}, or the model's KV heads if fewer",
          defaults.tp));
  add(kModel, "--layers", texts->layers, "N",
      fmt::format("Hold N of the model's layers; the report extrapolates to all. Default: {}",
                  defaults.layers));

  constexpr const char* kEngine = "Engine";
  add(kEngine, "--block", texts->block, "TOKENS",
      fmt::format("Tokens of a page. Default: {}", defaults.block));
  add(kEngine, "--device-tokens", texts->device_tokens, "TOKENS",
      fmt::format("Device pool. A request that needs more is refused. Default: {}k",
                  defaults.device_tokens / 1024));
  add(kEngine, "--device-bytes", texts->device_bytes, "BYTES",
      "The same in bytes of this run's layers and heads, as in 4GiB");
  add(kEngine, "--host-tokens", texts->host_tokens, "TOKENS",
      fmt::format("Host pool, for evicted prefixes; 0: none. Default: {}k", defaults.host_tokens / 1024));
  add(kEngine, "--host-bytes", texts->host_bytes, "BYTES", "The same in bytes");
  add(kEngine, "--max-running", texts->max_running, "N",
      fmt::format("Requests that run at a time. Default: {}", defaults.max_running));
  add(kEngine, "--chunk", texts->chunk, "TOKENS",
      fmt::format("Tokens of a step: one for each decoding request, the rest prefill. Default: {}",
                  defaults.chunk));

  constexpr const char* kSelection = "Selection";
  add(kSelection, "--select", texts->select, "K",
      "Decode with sparse attention on K tokens. The whole cache is on the host tier, in the pool of "
      "--host-tokens "
      "with no tier behind it; the device has a selection cache of K tokens for each running request and "
      "layer, which "
      "gather_selection_kv_cache fills in each step. MLA models: the latent row is the kv cache, without "
      "rope; others: "
      "K is the kv cache, V the rope cache");
  add(kSelection, "--overlap", texts->overlap, "P%",
      fmt::format(
          "Share of a step's ids that the next step selects again, in a model of recency window, sink tokens "
          "and a rest that changes slowly. Default: {:g}%, the published rate of adjacent steps",
          defaults.overlap));
  add(kSelection, "--topk", texts->topk, "FILE",
      "Recorded ids instead, one JSON object a line: {\"request\": 1, \"step\": 0, \"layer\": 0, \"ids\": "
      "[17, 4]}. "
      "request: its line in the trace, from 1; step: decode steps of the request, from 0; layer: of this "
      "run, from 0; "
      "ids: up to K positions, of which those outside the sequence are skipped. A line for each request, "
      "step and "
      "layer");

  constexpr const char* kMachine = "Machine";
  add(kMachine, "--threads", texts->threads, "N",
      "Threads of the operators, the copy limit and the checks. Default: KVFERRY_NUM_THREADS, else all "
      "processors");
  add(kMachine, "--impl", texts->impl, "NAME",
      "Force this implementation of the operators, as in generic. Default: the best that runs here");
  add(kMachine, "--link-gbps", texts->link_gbps, "GB/S",
      "Add a column: what evict and fetch, or the misses of --select, would take over a link of so many 10^9 "
      "bytes a second. Modelled as "
      "bytes / "
      "rate, nothing measured");

  constexpr const char* kResult = "Result";
  add(kResult, "--verify", texts->verify, "all|P%",
      fmt::format("Check every byte that these calls wrote: all, or P % of the calls of each kind, at least "
                  "{}, chosen "
                  "by seed; 0: none. Default: {:g}%",
                  defaults.verify.at_least, defaults.verify.percent));
  add(kResult, "--html", texts->html, "FILE",
      fmt::format("A page with charts that needs nothing but a browser; none: nowhere. Default: {}",
                  defaults.html));
  add(kResult, "--json", texts->json, "FILE",
      fmt::format("Where the numbers go; none: nowhere. Default: {}", defaults.json));

  command->callback([texts, &exit_code] {
    const Result<Options> options = parse_options(*texts);
    if (!options.ok()) {
      std::fputs(fmt::format("kvferry replay: {}\n", options.status().message()).c_str(), stderr);
      exit_code = kExitUsage;
      return;
    }
    exit_code = run_replay(options.value());
  });
}

}  // namespace kvferry::replay
