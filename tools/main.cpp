// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "commands.hpp"
#include "replay/cli.hpp"

namespace {

int real_main(int argc, char** argv) {
  CLI::App app(
      "KVFerry moves the KV caches of LLM inference. 'kvferry replay' answers what paging, prefix reuse and\n"
      "offload would cost and save for a traffic and a model on this machine; the other commands run, time "
      "and\n"
      "explain single calls.",
      "kvferry");
  app.require_subcommand(1);
  app.set_version_flag("--version", KVFERRY_VERSION);
  app.footer("'kvferry COMMAND --help' explains each command with examples.");
  int exit_code = 0;
  kvferry::replay::add_replay_command(app, exit_code);
  kvferry::tools::add_list_command(app, exit_code);
  kvferry::tools::add_explain_command(app, exit_code);
  kvferry::tools::add_run_command(app, exit_code);
  kvferry::tools::add_bench_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version come here too, with exit code 0.
    return app.exit(error) == 0 ? 0 : kvferry::tools::kExitUsage;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return real_main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvferry: %s\n", error.what());
    return kvferry::tools::kExitFailed;
  }
}
