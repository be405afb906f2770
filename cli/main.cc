// `longhaul`: everything that is neither the server nor a worker, as subcommands.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "cli/run.h"

int main(int argc, char** argv) {
  CLI::App app{
      "longhaul: gradients across a WAN. Server and worker are programs of their own: longhaul-server, "
      "longhaul-worker; longhaul-wan emulates a WAN for any program."};
  app.name("longhaul");
  app.require_subcommand(1);
  app.set_version_flag("--version", "longhaul 0.1.0, wire format 1");

  longhaul::cli::RunOptions run;
  CLI::App* command = app.add_subcommand(
      "run",
      "train on Fashion-MNIST with one server and N workers across an emulated WAN, all on this machine");
  command->add_option("--workers", run.workers, "worker processes in site B")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--rate", run.rate, "link rate each way, e.g. 200mbit")->capture_default_str();
  command->add_option("--delay", run.delay, "one-way delay, e.g. 25ms for a round trip of 50 ms")
      ->capture_default_str();
  command->add_option("--loss", run.loss, "share of packets lost each way, e.g. 2%")->capture_default_str();
  command
      ->add_option("--burst", run.loss_burst, "mean length of loss bursts in packets; 0: independent losses")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  command->add_option("--queue", run.queue, "bound of the link's queue as time")->capture_default_str();
  command->add_option("--rounds", run.rounds, "training rounds")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--policy", run.policy,
                   "what becomes of lost low-priority chunks: zero, count, stale, residual")
      ->check(CLI::IsMember({"zero", "count", "stale", "residual"}))
      ->capture_default_str();
  command->add_option("--seed", run.seed, "of the job and of the link")->capture_default_str();
  command
      ->add_option("--wan", run.wan, "auto, tun, netem, or loopback (seeded fault injector, needs no rights)")
      ->check(CLI::IsMember({"auto", "tun", "netem", "loopback"}))
      ->capture_default_str();
  command->add_option("--lr", run.optimizer_lr, "learning rate (the worker's default otherwise)");
  command->add_option("--momentum", run.optimizer_momentum, "momentum (the worker's default otherwise)");
  command->add_option("--batch", run.batch, "samples per worker and round (the worker's default otherwise)");
  command->add_option("--data", run.data, "directory of the dataset's IDX files");
  command->add_option("--json", run.json_file, "write the summary to this file");
  command->add_option("--logs", run.log_directory, "keep the daemons' logs in this directory");
  command->add_option("--min-accuracy", run.min_accuracy, "fail when the test accuracy ends below this, 0..1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  bool insecure = false;
  command->add_flag("--insecure", insecure,
                    "accept that traffic is not encrypted (it never is in this version)");
  command->footer(
      "Example: longhaul run --workers 8 --loss 10% --delay 50ms --json summary.json\n"
      "Exit codes: 0 fine, 1 the job failed, 2 bad options, 130 interrupted.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError&) {
    const std::string word = argc > 1 ? argv[1] : "";
    std::fprintf(stderr, "longhaul: %s; --help lists the subcommands\n",
                 word.empty() ? "a subcommand is required" : ("unknown subcommand '" + word + "'").c_str());
    return 2;
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }
  return longhaul::cli::RunJob(run);
}
