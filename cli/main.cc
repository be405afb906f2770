// `longhaul`: everything that is neither the server nor a worker, as subcommands.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/flags/help_page.h"
#include "base/flags/job_flags.h"
#include "base/flags/number_checks.h"
#include "bench/load/bench_flow.h"
#include "bench/load/bench_rounds.h"
#include "cli/bench_offload.h"
#include "cli/checkpoint.h"
#include "cli/job_commands.h"
#include "cli/keygen.h"
#include "cli/run.h"
#include "cli/sim_ring.h"
#include "cli/status.h"
#include "proto/version.h"
#include "transport/keys/key_file.h"

namespace {

// --key, --server-name and --insecure of the commands that talk to a server.
void AddSecurity(CLI::App* command, std::string* key_file, std::string* server_name, bool* insecure) {
  command->add_option("--server-name", *server_name,
                      "with a certificate: the name that the server's certificate must have; none = any");
  command->add_option("--key", *key_file, "key file of the job (longhaul keygen)")->type_name("FILE");
  command->add_flag("--insecure", *insecure, "no encryption and no authentication; typed at the server, too")
      ->excludes("--key");
}

void AddBenchFlow(CLI::App& bench, longhaul::load::BenchFlowOptions* flow) {
  CLI::App* command = bench.add_subcommand(
      "flow",
      "push windows back to back to a running longhaul-server for some seconds and measure the transport");
  command->option_defaults()->always_capture_default();
  command->add_option("--join", flow->join, "address of the server")->type_name("HOST:PORT")->required();
  command->add_option("--bytes", flow->bytes, "of one window, e.g. 1mb; up to 64 MiB");
  longhaul::cli::AddEnum(*command, "--class", &flow->reliability,
                         "high: reliable, with FEC; low: may be lost");
  command->add_option("--seconds", flow->seconds, "length of the run")->check(CLI::Range(0.1, 86400.0));
  command->add_option("--warmup", flow->warmup, "seconds at its start that do not count")
      ->check(CLI::Range(0.0, 86400.0));
  command->add_option("--windows", flow->windows, "end when so many windows are closed; 0 = only by time");
  command
      ->add_option("--fec-k", flow->fec_k,
                   "source symbols per FEC block; 0 = no FEC, -1 = as the server says")
      ->check(CLI::IsMember({-1, 0, 8, 12, 16, 20, 24}));
  longhaul::cli::AddEnum(*command, "--rate-controller", &flow->rate_controller,
                         "what decides how fast to send");
  command->add_option("--rate-cap", flow->rate_cap, "never send faster than this, e.g. 100mbit");
  command->add_option("--rate-floor", flow->rate_floor, "never send slower than this, e.g. 1mbit");
  command->add_option("--site", flow->site, "where this runs, for the server's messages");
  command->add_option("--datagram-size", flow->datagram_bytes, "bytes of UDP payload per datagram")
      ->check(CLI::Range(1200, 65507));
  command
      ->add_option("--idle-timeout", flow->idle_timeout, "seconds of silence after which the server is dead")
      ->check(CLI::Range(0.1, 86400.0));
  command->add_option("--connect-timeout", flow->connect_timeout, "seconds to get in; 0 = the idle time-out")
      ->check(CLI::Range(0.0, 86400.0));
  command->add_option("--seed", flow->seed, "of connection IDs and probing; 0 = any");
  command->add_option("--fault", flow->fault,
                      "faults injected into this process' traffic, e.g. drop=0.02,seed=7");
  command->add_option("--json", flow->json_file, "write the result to this file; - for standard output");
  command
      ->add_option("--series", flow->series, "seconds between points of a time series in the JSON; 0 = none")
      ->check(CLI::Range(0.0, 3600.0));
  command->add_flag("--quiet", flow->quiet, "no progress and no summary on standard error");
  AddSecurity(command, &flow->key_file, &flow->server_name, &flow->insecure);
  command->footer(
      "Example: longhaul bench flow --join server.example:7700 --seconds 15 --warmup 3 --json - --key "
      "job.key\n"
      "Goodput counts distinct chunks that the server has, without headers and retransmissions.\n"
      "Exit codes: 0 fine; 1 the run ended early (the result until then is written); 2 bad options; 3 no "
      "server\n"
      "there, or it does not take load generators; 130 interrupted (the result until then is written).");
}

void AddBenchRounds(CLI::App& bench, longhaul::load::BenchRoundsOptions* rounds) {
  CLI::App* command = bench.add_subcommand(
      "rounds", "rounds of PushPull by N workers against a server, and how long they take");
  command->option_defaults()->always_capture_default();
  command
      ->add_option(
          "--join", rounds->join,
          "address of the server; without it one is started in this process, on the loopback interface")
      ->type_name("HOST:PORT");
  command->add_option("--job", rounds->job, "the server's job");
  command->add_option("--workers", rounds->workers, "of the job, as the server was told")
      ->check(CLI::Range(1, 1024));
  command->add_option("--rank", rounds->rank, "run only this worker here; -1 = all of them")
      ->check(CLI::Range(-1, 1023));
  command->add_option("--bytes", rounds->bytes, "of every worker's gradient, e.g. 16mb; up to 1 GiB");
  command
      ->add_option("--tensors", rounds->tensors,
                   "cut the gradient into so many, pushed at once, first ones first")
      ->check(CLI::Range(1, 1024));
  command->add_option("--rounds", rounds->rounds, "that are measured")->check(CLI::Range(1, 1'000'000));
  command->add_option("--warmup", rounds->warmup, "rounds before them")->check(CLI::Range(0, 1'000'000));
  command->add_option("--gap", rounds->gap,
                      "time between a round's end and the next one's start, e.g. 100ms");
  command
      ->add_option("--energy-spread", rounds->energy_spread,
                   "how unequal chunks are: deviation of the logarithm of their scale; 0 = all alike")
      ->check(CLI::Range(0.0, 5.0));
  longhaul::cli::AddEnum(*command, "--rate-controller", &rounds->rate_controller,
                         "what decides how fast to send");
  command
      ->add_option("--wire-dtype", rounds->wire_dtype,
                   "element type of gradients on the wire: float32, bfloat16, float16, int8, int4, int2")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "int8", "int4", "int2"}));
  command
      ->add_option("--result-dtype", rounds->result_dtype,
                   "element type of results on the wire: float32, bfloat16, float16")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  command->add_option("--datagram-size", rounds->datagram_bytes, "bytes of UDP payload per datagram")
      ->check(CLI::Range(1200, 65507));
  command
      ->add_option("--idle-timeout", rounds->idle_timeout,
                   "seconds of silence after which the server is dead")
      ->check(CLI::Range(0.1, 86400.0));
  command
      ->add_option("--connect-timeout", rounds->connect_timeout, "seconds to get in; 0 = the idle time-out")
      ->check(CLI::Range(0.0, 86400.0));
  command->add_option("--seed", rounds->seed, "of connection IDs and probing; 0 = any");
  command->add_option("--fault", rounds->fault,
                      "faults injected into the workers' traffic, e.g. drop=0.02,seed=7");
  command->add_option("--json", rounds->json_file, "write the result to this file; - for standard output");
  command->add_flag("--quiet", rounds->quiet, "no progress and no summary on standard error");
  AddSecurity(command, &rounds->key_file, &rounds->server_name, &rounds->insecure);
  longhaul::cli::AddJobFlags(*command, &rounds->job_spec,
                             "Of the server, without --join; --high-share and --high-energy also of these "
                             "workers alone, with it",
                             &rounds->job_words);
  command->footer(
      "Example: longhaul bench rounds --join server.example:7700 --workers 4 --bytes 1mb --rounds 100 --json "
      "- "
      "--key job.key\n"
      "A round lasts from the moment when the workers of this process push until all of them have its "
      "result;\n"
      "they begin rounds together. goodput_mbps: gradient bytes of these workers over the time of the "
      "rounds;\n"
      "lost_chunks, repaired_chunks and filled_chunks are the server's, of all workers; chunk_bytes_sent: of "
      "the\n"
      "lowest rank here, without retransmissions and repair.\n"
      "Exit codes: 0 fine; 1 the rounds ended early (the result until then is written); 2 bad options; 3 no\n"
      "server there, or it does not let the workers in; 130 interrupted (the result until then is written).");
}

void AddBenchOffload(CLI::App& bench, longhaul::cli::BenchOffloadOptions* o) {
  CLI::App* command = bench.add_subcommand(
      "offload", "what the offload device does on this machine, beside what was wanted and beside others");
  std::vector<std::string> names;
  for (const auto& each : longhaul::cli::kOffloadBenches) names.emplace_back(each.name);
  command->add_option("--only", o->only, "these benches alone")->delimiter(',')->check(CLI::IsMember(names));
  command->add_option("--repeats", o->repeats, "messages of a case; 0 = as many as the bench finds right")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  command
      ->add_option("--mib", o->mebibytes, "MiB of a rank's message; 0 = the sizes that the bench finds right")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--json", o->json_file, "write the result to this file; - for standard output");
  command->footer(
      "Example: longhaul bench offload --only shm,peers\n"
      "The benches are programs of a build with them (tools/dev build); what they print goes to standard "
      "error.\n"
      "gloo and OpenMPI are compared with where they were installed (tools/dev setup peers); veth needs "
      "root.\n"
      "Exit codes: 0 measured, whatever was found; 1 a bench is not there or has failed, or the result "
      "cannot "
      "be\n"
      "written; 2 bad options.");
}

CLI::App* AddStatus(CLI::App& app, longhaul::cli::StatusCommandOptions* o) {
  CLI::App* command =
      app.add_subcommand("status", "print what a running longhaul-server says of its job, as JSON");
  command->option_defaults()->always_capture_default();
  command->add_option("--join", o->join, "address of the server")->type_name("HOST:PORT")->required();
  command->add_option("--timeout", o->timeout, "seconds to wait for the answer")
      ->check(CLI::Range(0.1, 86400.0));
  AddSecurity(command, &o->key_file, &o->server_name, &o->insecure);
  command->footer(
      "Example: longhaul status --join server.example:7700 --key job.key\n"
      "Of certificates it takes a tool's (longhaul keygen --from CA --role tool), whose name is on the "
      "server's\n"
      "--allow where that is given. In the answer: job, workers, phase, rounds, members, counters, and "
      "security:\n"
      "tls-psk, tls-certificates, or insecure.\n"
      "Exit codes: 0 fine, 1 cannot print, 2 bad options, 3 no server there, or it does not answer us.");
  return command;
}

CLI::App* AddKick(CLI::App& app, longhaul::cli::StatusCommandOptions* o, uint32_t* rank) {
  CLI::App* command = app.add_subcommand(
      "kick", "disconnect a worker of a running longhaul-server, and keep it out of the job");
  command->option_defaults()->always_capture_default();
  command->add_option("--join", o->join, "address of the server")->type_name("HOST:PORT")->required();
  command->add_option("--rank", *rank, "of the worker")->check(CLI::Range(0, 1023))->required();
  command->add_option("--timeout", o->timeout, "seconds to wait for the answer")
      ->check(CLI::Range(0.1, 86400.0));
  AddSecurity(command, &o->key_file, &o->server_name, &o->insecure);
  command->footer(
      "Example: longhaul kick --join server.example:7700 --rank 2 --key ops.key\n"
      "The worker's identity (with a shared key: its rank from its host) is refused until the server reloads "
      "or\n"
      "restarts, or the job is over; its successor (--allow fra:0+fra2) may come. A job with fewer than\n"
      "--min-workers ends. Of certificates it takes a tool's, as longhaul status does.\n"
      "Exit codes: 0 kicked, 1 the server refuses or has no such worker, 2 bad options, 3 no server there.");
  return command;
}

CLI::App* AddHandOver(CLI::App& app, longhaul::cli::StatusCommandOptions* o) {
  CLI::App* command = app.add_subcommand(
      "hand-over", "end all servers of a running job between two rounds, for others that go on with it");
  command->option_defaults()->always_capture_default();
  command->add_option("--join", o->join, "address of the job's first server")
      ->type_name("HOST:PORT")
      ->required();
  o->timeout = 60;
  command->add_option("--timeout", o->timeout, "seconds that the workers have to come to one point")
      ->check(CLI::Range(0.1, 86400.0));
  AddSecurity(command, &o->key_file, &o->server_name, &o->insecure);
  command->footer(
      "Example, from two servers to three:\n"
      "  longhaul hand-over --join ams.example:7700 --key ops.key\n"
      "  longhaul checkpoint reshard ams/ fra/ --servers 3 --out next\n"
      "and start the three on next/server-1 (--servers 3), next/server-2, next/server-3, the first at an "
      "address\n"
      "that the workers know. They wait for --reconnect-timeout, and go on with the round that comes next.\n"
      "Servers run with --round-log. Not with a lossy downlink or a bounded staleness.\n"
      "Exit codes: 0 handed over, 1 refused: the job goes on where it is, 2 bad options, 3 no server there.");
  return command;
}

CLI::App* AddKeygen(CLI::App& app, longhaul::cli::KeygenOptions* o) {
  CLI::App* command =
      app.add_subcommand("keygen", "make the key that server, workers and tools want as --key FILE");
  command->option_defaults()->always_capture_default();
  command->add_option("--out", o->out, "new file, readable by its owner only")->type_name("FILE")->required();
  command->add_option("--job", o->job, "the job that the key is for; none = default");
  command->add_flag("--ca", o->authority,
                    "make an authority, for jobs in which every machine has its own certificate");
  command->add_option("--from", o->from, "make a certificate, signed by this authority")->type_name("FILE");
  command->add_option("--role", o->role, "with --from: whose certificate it is; none = worker")
      ->check(CLI::IsMember({"server", "worker", "tool"}));
  command->add_option("--name", o->name,
                      "with --from: name of the machine or site, as in the server's --allow");
  command->add_option("--ranks", o->ranks,
                      "with --from, of a worker: the ranks that it may take, like 3 or 1-3; none = any one");
  command
      ->add_option("--days", o->days,
                   "of an authority or a certificate; 0 = 3650, of a certificate 365 or as long as its "
                   "authority lives")
      ->check(CLI::Range(0, 36500));
  command->footer(
      "One key for all:            longhaul keygen --out job.key --job resnet\n"
      "A certificate for each:     longhaul keygen --ca --out ca.key\n"
      "                            longhaul keygen --from ca.key --role server --name ams --job resnet --out "
      "server.key\n"
      "                            longhaul keygen --from ca.key --role worker --name fra --job resnet --out "
      "fra.key\n"
      "Every holder of a shared key can read the job's traffic and join it; a certificate speaks for one "
      "machine.\n"
      "Exit codes: 0 fine, 1 the file cannot be written, 2 bad options.");
  return command;
}

struct CheckpointCommands {
  CLI::App* list;
  CLI::App* verify;
  CLI::App* exports;
  CLI::App* reshard;
};

CheckpointCommands AddCheckpoint(CLI::App& app, longhaul::cli::CheckpointOptions* o,
                                 longhaul::cli::ReshardCommandOptions* r) {
  CLI::App* command = app.add_subcommand("checkpoint", "what a longhaul-server has in its --checkpoint-dir");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, const char* which) {
    CLI::App* sub = command->add_subcommand(name, what);
    sub->option_defaults()->always_capture_default();
    sub->add_option("directory", o->directory, "the server's --checkpoint-dir")->type_name("DIR")->required();
    sub->add_option("--generation", o->generation, which)->check(CLI::Range(0, 1'000'000'000));
    return sub;
  };
  CLI::App* list = add("list", "what every checkpoint says of itself, newest first", "this one; 0 = all");
  list->footer(
      "Prints one JSON object a line: generation, path, code (Ok, or what is wrong), job, rounds, written, "
      "tensors,\n"
      "elements, bytes. Exit codes: 0 fine, 1 there is none, or one has no good manifest, 2 bad options.");
  CLI::App* verify =
      add("verify", "read checkpoints and compare sizes, hashes, names and shapes", "this one; 0 = all");
  verify->footer(
      "Prints what list does, with what is wrong. Exit codes: 0 all are good, 1 one is not or there is "
      "none,\n"
      "2 bad options.");
  CLI::App* exports = add("export", "write a checkpoint's parameters as one safetensors file",
                          "this one; 0 = the newest that is good");
  exports->add_option("--out", o->out, "new file")->type_name("FILE")->required();
  exports->add_flag("--optimizer", o->optimizer, "also the optimizer's state, as \"exp_avg.NAME\"");
  exports->footer(
      "Example: longhaul checkpoint export /var/lib/longhaul --out model.safetensors\n"
      "         python3 -c 'from safetensors.numpy import load_file; "
      "print(load_file(\"model.safetensors\"))'\n"
      "Exit codes: 0 fine, 1 no checkpoint is good or the file cannot be written, 2 bad options.");
  CLI::App* reshard = command->add_subcommand(
      "reshard", "cut the checkpoints of a job's servers for another number of servers");
  reshard->option_defaults()->always_capture_default();
  reshard
      ->add_option("directories", r->directories,
                   "the --checkpoint-dir of every server that there was, in any order")
      ->type_name("DIR")
      ->required();
  reshard->add_option("--servers", r->servers, "that there will be")->check(CLI::Range(1, 64))->required();
  reshard
      ->add_option("--out", r->out,
                   "new directory; OUT/server-1 is the first server's --checkpoint-dir, and so on")
      ->type_name("DIR")
      ->required();
  reshard->footer(
      "Takes the newest round that all of them have a checkpoint of, as after SIGTERM to all servers. Prints "
      "one JSON\n"
      "object. Exit codes: 0 fine, 1 a part is missing or damaged, or OUT cannot be written, 2 bad options.");
  return {list, verify, exports, reshard};
}

void AddSimRing(CLI::App& sim, longhaul::cli::SimRingOptions* o) {
  CLI::App* command = sim.add_subcommand(
      "ring", "ring all-reduce with slow nodes: the figures of the skip rule, and what other policies save");
  command->option_defaults()->always_capture_default();
  command->add_option("--reduce-time", o->reduce_time, "T: receive, reduce and send of a chunk at a node");
  command->add_option("--link-delay", o->link_delay, "of the links between the nodes");
  command->add_option("--bytes", o->bytes, "of a chunk, e.g. 8kib")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->transform(longhaul::cli::AsBytes());
  command->add_option("--rate", o->rate, "of the links");
  command->add_option("--alpha", o->alpha, "a node is slow beyond alpha x T")->check(CLI::Range(1.0, 10.0));
  command->add_option("--runs", o->runs, "random runs of each policy, with many slow nodes at once")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--seed", o->seed, "of the first random run; 0 = a new one, which is printed");
  command->add_option("--json", o->json_file, "write the result to this file; - for standard output");
  command->add_option(
      "--gnuplot", o->plot_file,
      "write the figures to this file, as a script that gnuplot makes an SVG of; - for standard output");
  command->footer(
      "Example: longhaul sim ring --gnuplot - | gnuplot > ring.svg\n"
      "The model: n nodes in a ring add up chunks; the time of a slow node is T + dT. Savings are against a\n"
      "ring that waits. docs/explanation/ring.md says what they hide.\n"
      "Exit codes: 0 fine; 1 a run never ended or counted a node's part other than once, or a file cannot "
      "be\n"
      "written; 2 bad options.");
}

// An option of `run` that a daemon understands and checks.
struct HandedOn {
  const char* name;
  const char* help;
  bool flag = false;
};

constexpr HandedOn kOfServer[] = {
    {"--min-workers", "fewer abort the job"},
    {"--capacity", "rate of the link that the workers share"},
    {"--plugin", "a shared object with optimizers of the user's, for --optimizer"},
    {"--plugin-aggregation", "a rule of a plug-in, instead of --aggregation"},
    {"--no-grants", "do not tell workers how fast to send", true},
};

constexpr HandedOn kOfWorkers[] = {
    {"--lr", "learning rate"},
    {"--momentum", "momentum"},
    {"--batch", "samples per worker and round"},
    {"--optimizer", "the server's optimizer, e.g. adam:lr=0.001, instead of --lr and --momentum"},
    {"--local-steps", "steps of the local optimizer per round"},
    {"--local-optimizer", "optimizer of local steps, e.g. adamw:lr=0.001"},
    {"--skew", "share of a worker's images from its own few classes, 0..1"},
    {"--constant-lr", "the learning rate does not fall", true},
    {"--wire-dtype", "element type of gradients on the wire"},
    {"--result-dtype", "element type of the parameters on their way back"},
};

constexpr HandedOn kOfConnections[] = {
    {"--rate-controller", "what decides how fast to send"},
    {"--cipher", "of the packets: aes-128-gcm, aes-256-gcm, chacha20-poly1305"},
};

// What is given of these is appended to `words`, value and all.
template <size_t kCount>
void HandOn(CLI::App& command, const HandedOn (&options)[kCount], const std::string& group,
            std::vector<std::string>* words) {
  for (const HandedOn& option : options) {
    const std::string name = option.name;
    if (option.flag) {
      command
          .add_flag_callback(
              name, [name, words] { words->push_back(name); }, option.help)
          ->group(group);
      continue;
    }
    const auto take = [name, words](const std::string& value) { words->insert(words->end(), {name, value}); };
    command.add_option_function<std::string>(name, take, option.help)->group(group);
  }
}

// Empty: what is given goes with a command of the user's.
std::string WhyNoCommand(const CLI::App& options, const longhaul::cli::RunOptions& run) {
  if (run.command.empty()) return "-- is followed by no command";
  if (!run.worker_words.empty()) return run.worker_words.front() + " has no meaning with a command";
  for (const char* name : {"--rounds", "--data", "--min-accuracy"}) {
    if (options.count(name) > 0) return std::string(name) + " has no meaning with a command";
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "longhaul: gradients across a WAN. Server and worker are programs of their own: longhaul-server, "
      "longhaul-worker; longhaul-wan emulates a WAN for any program."};
  app.name("longhaul");
  app.require_subcommand(1);
  app.set_version_flag("--version",
                       "longhaul 0.1.0, wire format " + std::to_string(longhaul::wire::kVersion));

  longhaul::cli::RunOptions run;
  CLI::App* command = app.add_subcommand(
      "run",
      "train on Fashion-MNIST, or what a command of yours trains, with one server and N workers across an "
      "emulated WAN, all on this machine");
  auto* const sites =
      command->add_option("--sites", run.sites, "sites of workers; each has a link of its own to the server")
          ->check(CLI::Range(1u, longhaul::cli::kMaxRunSites))
          ->capture_default_str();
  auto* const ranks =
      command->add_option("--ranks", run.ranks, "worker processes of a site; they share its link")
          ->check(CLI::Range(1u, longhaul::cli::kMaxRunWorkers))
          ->capture_default_str();
  command->add_option("--workers", run.ranks, "instead of --sites and --ranks: worker processes in one site")
      ->check(CLI::Range(1u, longhaul::cli::kMaxRunWorkers))
      ->capture_default_str()
      ->excludes(sites)
      ->excludes(ranks);
  command->add_flag("--offload", run.offload,
                    "a longhaul-offload in each site adds up what its workers have: one stream a site");
  command->add_option("--rate", run.rate, "link rate each way, e.g. 200mbit")->capture_default_str();
  command->add_option("--delay", run.delay, "one-way delay, e.g. 25ms for a round trip of 50 ms")
      ->capture_default_str();
  command->add_option("--loss", run.loss, "share of packets lost each way, e.g. 2%")->capture_default_str();
  command
      ->add_option("--burst", run.loss_burst, "mean length of loss bursts in packets; 0: independent losses")
      ->check(CLI::Range(1.0, 1000.0) | CLI::IsMember({"0"}))
      ->capture_default_str();
  command->add_option("--queue", run.queue, "bound of the link's queue as time")->capture_default_str();
  command->add_option("--rounds", run.rounds, "training rounds")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--seed", run.seed, "of the job and of the link")->capture_default_str();
  command
      ->add_option("--wan", run.wan, "auto, tun, netem, or loopback (seeded fault injector, needs no rights)")
      ->check(CLI::IsMember({"auto", "tun", "netem", "loopback"}))
      ->capture_default_str();
  const std::string of_server = "Handed to the server (longhaul-server --help)";
  longhaul::cli::AddJobFlags(*command, &run.job_spec, of_server, &run.server_words);
  HandOn(*command, kOfServer, of_server, &run.server_words);
  HandOn(*command, kOfWorkers, "Handed to the workers (longhaul-trainer --help)", &run.worker_words);
  HandOn(*command, kOfConnections, "Handed to the workers, with --offload to longhaul-offload",
         &run.connection_words);
  command->add_option("--data", run.data, "directory of the dataset's IDX files");
  command->add_option("--json", run.json_file, "write the summary to this file");
  command->add_option("--logs", run.log_directory, "keep the daemons' logs in this directory");
  command->add_option("--min-accuracy", run.min_accuracy, "fail when the test accuracy ends below this, 0..1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--key", run.key_file, "key file of the job; without it a key is made for this run")
      ->type_name("FILE");
  command->add_flag("--insecure", run.insecure, "no encryption and no authentication, to see what they cost")
      ->excludes("--key");
  command->footer(
      "Examples: longhaul run --workers 8 --loss 10% --delay 50ms --json summary.json\n"
      "          longhaul run --sites 2 --ranks 4 --offload --rate 50mbit --json summary.json\n"
      "          longhaul run --workers 4 --loss 2% -- python3 train.py\n"
      "Behind -- stands a command that each rank runs instead of longhaul-trainer: longhaul-worker "
      "starts it "
      "(see its\n--help). Its output is this program's; its standard error is in --logs.\n"
      "In the summary: wan_bytes_up and wan_bytes_down (on the links, with headers), seconds_p50 (of a "
      "round), "
      "accuracy, ...\n"
      "Exit codes: 0 fine, 1 the job failed, 2 bad options, 130 interrupted.");
  longhaul::load::BenchFlowOptions flow;
  CLI::App* bench = app.add_subcommand("bench", "measure a server, or the offload device");
  bench->require_subcommand(1);
  AddBenchFlow(*bench, &flow);
  longhaul::load::BenchRoundsOptions rounds;
  AddBenchRounds(*bench, &rounds);
  longhaul::cli::BenchOffloadOptions offload;
  AddBenchOffload(*bench, &offload);
  longhaul::cli::SimRingOptions ring;
  CLI::App* sim = app.add_subcommand("sim", "simulate in virtual time");
  sim->require_subcommand(1);
  AddSimRing(*sim, &ring);
  longhaul::cli::KeygenOptions key;
  const CLI::App* keygen = AddKeygen(app, &key);
  longhaul::cli::StatusCommandOptions question;
  const CLI::App* status = AddStatus(app, &question);
  longhaul::cli::StatusCommandOptions order;
  uint32_t kicked_rank = 0;
  const CLI::App* kick = AddKick(app, &order, &kicked_rank);
  longhaul::cli::StatusCommandOptions change;
  const CLI::App* hand_over = AddHandOver(app, &change);
  longhaul::cli::CheckpointOptions saved;
  longhaul::cli::ReshardCommandOptions reshard;
  const CheckpointCommands checkpoint = AddCheckpoint(app, &saved, &reshard);
  longhaul::cli::JobCommands jobs(app);
  longhaul::cli::CheckValues(app);
  longhaul::cli::AddHelpPage(app);
  // What follows is the command's.
  char** const dashes = argc > 1 && std::string_view(argv[1]) == "run"
                            ? std::find(argv, argv + argc, std::string_view("--"))
                            : argv + argc;
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::RequiredError& e) {
    if (app.got_subcommand(bench) || app.got_subcommand("checkpoint") || *sim || *keygen || *status ||
        *kick || *hand_over || !jobs.given().empty()) {
      const std::string job_command = jobs.given();
      const char* const name = !job_command.empty()               ? job_command.c_str()
                               : *keygen                          ? "keygen"
                               : *status                          ? "status"
                               : *kick                            ? "kick"
                               : *hand_over                       ? "hand-over"
                               : *sim                             ? "sim"
                               : app.got_subcommand("checkpoint") ? "checkpoint"
                                                                  : "bench";
      std::fprintf(stderr, "longhaul %s: %s; --help says more\n", name, e.what());
      return 2;
    }
    const std::string word = argc > 1 ? argv[1] : "";
    if (const std::string why = longhaul::cli::JobCommands::WhyAbsent(word); !why.empty()) {
      std::fprintf(stderr, "longhaul: %s\n", why.c_str());
      return 2;
    }
    std::fprintf(stderr, "longhaul: %s; --help lists the subcommands\n",
                 word.empty() ? "a subcommand is required" : ("unknown subcommand '" + word + "'").c_str());
    return 2;
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }
  if (*checkpoint.list) return longhaul::cli::RunCheckpointList(saved);
  if (*checkpoint.verify) return longhaul::cli::RunCheckpointVerify(saved);
  if (*checkpoint.exports) return longhaul::cli::RunCheckpointExport(saved);
  if (*checkpoint.reshard) return longhaul::cli::RunCheckpointReshard(reshard);
  if (*sim) return longhaul::cli::RunSimRing(ring);
  if (!jobs.given().empty()) return jobs.Run();
  if (bench->got_subcommand("offload")) return longhaul::cli::RunBenchOffload(offload);
  // Every other subcommand makes or reads keys.
  longhaul::keys::ForbidCoreDumps();
  (void)longhaul::keys::WipeFreedKeys();
  if (*keygen) return longhaul::cli::RunKeygen(key);
  if (*status) return longhaul::cli::RunStatus(question);
  if (*kick) return longhaul::cli::RunKick(order, kicked_rank);
  if (*hand_over) return longhaul::cli::RunHandOver(change);
  if (bench->got_subcommand("rounds")) return longhaul::load::RunBenchRounds(rounds);
  if (bench->got_subcommand("flow")) return longhaul::load::RunBenchFlow(flow);
  if (dashes == argv + argc) return longhaul::cli::RunJob(run);
  run.command.assign(dashes + 1, argv + argc);
  if (const std::string why = WhyNoCommand(*command, run); !why.empty()) {
    std::fprintf(stderr, "longhaul run: %s\n", why.c_str());
    return 2;
  }
  return longhaul::cli::RunJob(run);
}
