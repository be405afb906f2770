// longhaul-worker: joins a parameter server and trains the built-in model. Flags, signals and exit codes
// only.

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "base/files.h"
#include "base/flags/config_file.h"
#include "base/flags/connect_flags.h"
#include "base/flags/counter_json.h"
#include "base/flags/environment.h"
#include "base/flags/exit_codes.h"
#include "base/flags/flag_names.h"
#include "base/flags/help_page.h"
#include "base/flags/job_flags.h"
#include "base/flags/job_json.h"
#include "base/flags/number_checks.h"
#include "base/process/output.h"
#include "base/process/signal_watcher.h"
#include "base/units_text.h"
#include "health/metrics_flag.h"
#include "longhaul/client.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"
#include "worker/client/client_impl.h"
#include "worker/daemon/launch.h"
#include "worker/demo/trainer_loop.h"

namespace {

using longhaul::Client;
using longhaul::ClientStats;
using longhaul::Result;
using longhaul::Status;
using longhaul::StatusCode;
using longhaul::health::HealthPort;
using longhaul::process::Output;
using longhaul::worker::RoundProgress;
using longhaul::worker::TrainSummary;
using nlohmann::json;

enum ExitCode { kExitOk = 0, kExitFailure = 1, kExitUsage = 2, kExitDataset = 3 };

struct Flags : longhaul::cli::ConnectFlags {
  longhaul::worker::TrainOptions train;
  bool constant_rate = false;
  bool weight_given = false;
  bool no_seccomp = false;
  double skew = 0;
  std::string wire_dtype = "float32", result_dtype = "float32";
  std::string data = longhaul::worker::kDefaultDatasetDirectory;
  std::string progress = "text";
  std::string json_file;
  std::string metrics;
  std::string log_level = "info";
  std::string security;  // tls-psk, tls-certificates or insecure
  // Of a command instead of the built-in trainer.
  std::vector<std::string> command;
  uint32_t ranks = 1;
  uint32_t restarts = 0;
  std::string hostfile;
  std::string host;
};

constexpr const char* kFooter = R"(
Examples:
  longhaul-worker --join 127.0.0.1:7700 --rank 0 --world-size 1 --insecure
  longhaul-worker --offload unix:/run/longhaul/site.sock
  longhaul-worker --join ams.example:7700 --rank 2 --world-size 4 --site fra --key job.key --rounds 500
  MASTER_ADDR=ams.example MASTER_PORT=7700 RANK=2 WORLD_SIZE=4 longhaul-worker --key job.key
  longhaul-worker --join ams.example:7700 --key job.key --hostfile hosts --restarts 3 -- python3 train.py

Behind -- stands a command: one process of it for each rank of this host trains instead of the built-in network, with
the options above in its environment, from where longhaul.connect() of Python, OptionsFromEnvironment of C++ and
longhaul_connect of C take them; torchrun's, Open MPI's and ps-lite's variables are set as well. Its standard input is
empty; signals go to all ranks; a rank that fails is started again --restarts times, then the others end as well.

Every option but --insecure can also be given as LONGHAUL_<OPTION>, for example LONGHAUL_DATAGRAM_SIZE=1200 or
LONGHAUL_KEY=job.key; the server and `longhaul` read none of these. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,
OMPI_COMM_WORLD_RANK and _SIZE, DMLC_WORKER_ID, DMLC_NUM_WORKER, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT are understood
when neither flag nor LONGHAUL_* says otherwise, and not with --offload.
Exit codes: 0 trained to the end, 1 failure (named on stderr), 2 usage, 3 dataset missing or damaged, or
--metrics cannot listen, 130 and 143 ended at once by a signal. With a command: that of the first rank that failed for
good, 128 + the signal that ended it, 127 the command cannot be executed. SIGINT, SIGTERM and a terminal that closes: it leaves the job in order; a second signal ends it at
once.)";

// Generic launchers' variables count where ours are not set; CLI11 checks them like flags.
// A hostfile says the ranks itself.
void TakeLauncherEnvironment(bool hostfile) {
  for (const auto& [ours, value] : longhaul::cli::LauncherEnvironment()) {
    if (!hostfile || std::string_view(ours) == "LONGHAUL_JOIN") setenv(ours, value.c_str(), /*overwrite=*/0);
  }
}

// --- What the user sees ---

json FitJson(const ClientStats& s) {
  return {{"l0", s.fit_floor},       {"capacity_mbps", s.fit_capacity.mbps()},
          {"target", s.target_loss}, {"r2", s.fit_r_squared},
          {"n", s.fit_samples},      {"state", s.fit_state},
          {"basis", s.fit_basis}};
}

json ReportJson(const RoundProgress& p, double bubble_threshold) {
  const longhaul::OperationStats::RoundInfo& r = p.reports.sum;
  return {{"tensors", p.reports.tensors},
          {"contributors", r.contributors},
          {"last_rank", r.last_rank},
          {"bubble_threshold", bubble_threshold},
          {"low_chunks", r.low_chunks},
          {"low_lost", r.low_lost},
          {"loss", r.loss},
          {"lost_chunks", r.lost_chunks},
          {"tolerated_chunks", r.tolerated_chunks},
          {"filled_chunks", r.filled_chunks},
          {"fill_reason", r.fill_reason},
          {"repaired_chunks", r.repaired_chunks},
          {"rejected_chunks", r.rejected_chunks},
          {"excluded", r.excluded}};
}

json RoundJson(const RoundProgress& p, double bubble_threshold) {
  json line = {{"event", "round"},
               {"round", p.round},
               {"draws", p.draws},
               {"rounds", p.rounds},
               {"seconds", p.seconds},
               {"training_loss", p.training_loss},
               {"goodput_mbps", p.goodput_mbps},
               {"observed_loss", p.observed_loss},
               {"retransmissions", p.stats.retransmissions},
               {"repairs", p.stats.round_repaired_chunks + p.stats.repaired_chunks},
               {"fills", p.stats.round_filled_chunks},
               {"rtt_ms", std::chrono::duration<double, std::milli>(p.stats.smoothed_rtt).count()},
               {"bandwidth_mbps", p.stats.bandwidth.mbps()},
               {"rate_state", p.stats.rate_state},
               {"fit", FitJson(p.stats)}};
  if (p.accuracy) line["accuracy"] = *p.accuracy;
  if (p.reports.tensors > 0) line["report"] = ReportJson(p, bubble_threshold);
  return line;
}

json SummaryJson(const TrainSummary& s, const std::string& security) {
  json line = {{"event", "finished"},
               {"rounds", s.rounds},
               {"seconds", s.seconds},
               {"security", security},
               {"training_loss", s.training_loss},
               {"round_seconds_p50", s.round_seconds_p50},
               {"round_seconds_p99", s.round_seconds_p99},
               {"observed_loss", s.stats.packets_sent == 0 ? 0.0
                                                           : static_cast<double>(s.stats.packets_lost) /
                                                                 static_cast<double>(s.stats.packets_sent)},
               {"totals", longhaul::CountersJson<ClientStats>(longhaul::kClientCounters, s.stats)}};
  if (s.accuracy) line["accuracy"] = *s.accuracy;
  return line;
}

class Progress {
 public:
  Progress(const std::string& mode, std::string security, Output* output)
      : json_(mode == "json"), text_(mode == "text"), security_(std::move(security)), output_(output) {}

  void Joined(const Client& client) {
    const longhaul::JobSpec spec = client.settings();
    bubble_threshold_ = spec.bubble_threshold;
    if (json_) {
      json line = spec;
      line.update({{"event", "joined"}, {"rank", client.rank()}, {"world_size", client.world_size()}});
      Line(line);
    } else if (text_) {
      output_->Print(fmt::format("joined as rank {} of {} (policy {}); waiting for the others", client.rank(),
                                 client.world_size(), NameOf(spec.policy)));
    }
  }
  // On a thread of the client's.
  void Members(const longhaul::Membership& m) {
    if (json_) {
      Line({{"event", "membership"},
            {"epoch", m.epoch},
            {"ranks", m.ranks},
            {"shard_index", m.shard_index},
            {"shard_count", m.shard_count}});
    } else if (text_) {
      output_->Print(
          fmt::format("in the job: {} workers, ranks {}", m.ranks.size(), fmt::join(m.ranks, " ")));
    }
  }
  void Round(const RoundProgress& p) {
    if (json_) return Line(RoundJson(p, bubble_threshold_));
    if (!text_ || (!p.accuracy && p.round % kTextEvery != 0 && p.round != p.rounds)) return;
    output_->Print(fmt::format(
        "round {}/{}  loss {:.4f}  {:.0f} ms  {:.0f} Mbit/s  packets lost {:.2f} %  rtt {:.1f} ms{}", p.round,
        p.rounds, p.training_loss, p.seconds * 1e3, p.goodput_mbps, p.observed_loss * 100,
        std::chrono::duration<double, std::milli>(p.stats.smoothed_rtt).count(),
        p.accuracy ? fmt::format("  accuracy {:.4f}", *p.accuracy) : ""));
  }
  void Finished(const TrainSummary& s) {
    if (json_) return Line(SummaryJson(s, security_));
    if (!text_) return;
    output_->Print(fmt::format("finished {} rounds in {:.1f} s (round p50 {:.0f} ms, p99 {:.0f} ms){}",
                               s.rounds, s.seconds, s.round_seconds_p50 * 1e3, s.round_seconds_p99 * 1e3,
                               s.accuracy ? fmt::format(", accuracy {:.4f}", *s.accuracy) : ""));
  }

 private:
  static constexpr uint64_t kTextEvery = 20;
  void Line(const json& value) { output_->Print(value.dump()); }

  bool json_;
  bool text_;
  std::string security_;
  Output* output_;
  double bubble_threshold_ = 0;  // of the job
};

int Fail(const Status& why, int code) {
  std::fprintf(stderr, "longhaul-worker: %s\n", longhaul::cli::WithFlagNames(why.ToString()).c_str());
  return code;
}

struct Data {
  longhaul::worker::Dataset shard;
  longhaul::worker::Dataset test;
  size_t total = 0;
};

// This worker's images. Errors: kInvalidArgument (none), those of the files.
Result<Data> LoadData(const Flags& flags) {
  using longhaul::worker::DatasetPart;
  auto train = longhaul::worker::LoadFashionMnist(flags.data, DatasetPart::kTrain);
  if (!train.ok()) return train.status();
  auto test = longhaul::worker::LoadFashionMnist(flags.data, DatasetPart::kTest);
  if (!test.ok()) return test.status();
  Data data;
  data.total = train->size();
  data.shard = longhaul::worker::ShardOf(*train, flags.connect.rank, flags.connect.world_size,
                                         flags.train.seed, flags.skew);
  data.test = *std::move(test);
  if (data.shard.size() == 0) return Status(StatusCode::kInvalidArgument, "more workers than images");
  return data;
}

Result<Client> Join(const Flags& flags, const Data* data, Progress* progress) {
  longhaul::ConnectOptions connect = flags.connect;
  if (data != nullptr && !flags.weight_given) {
    connect.weight = longhaul::worker::ShardWeight(data->shard, data->total, connect.world_size);
  }
  connect.log = [](longhaul::LogLevel level, std::string_view text) {
    spdlog::log(level == longhaul::LogLevel::kWarning ? spdlog::level::warn : spdlog::level::info, "{}",
                longhaul::cli::WithFlagNames(std::string(text)));
  };
  connect.on_membership = [progress](const longhaul::Membership& m) { progress->Members(m); };
  if (!flags.no_seccomp)
    longhaul::process::ConfineOrWarn(longhaul::process::Confinement::kWorker, !flags.metrics.empty());
  return Client::Connect(connect);
}

// What probes and scrapes ask of the client's loop.
longhaul::health::HealthSource SourceOf(const Client& client) {
  using longhaul::internal::ClientImpl;
  const auto look = [&client] {
    const bool answers = ClientImpl::Of(client).Ask().has_value();
    const Status status = client.status();
    // A client that has ended does not answer either, and says why.
    return longhaul::health::LoopState{.answers = answers || !status.ok(), .not_ready = status.message()};
  };
  const auto collect = [&client](longhaul::health::MetricPage* page) {
    const auto stats = ClientImpl::Of(client).Ask();
    if (stats) page->Add<ClientStats>("client", longhaul::kClientCounters, {{&*stats}});
    return stats || !client.status().ok();
  };
  return {look, collect};
}

// Joins, trains and leaves. Errors of the command line and the data: `code` is the exit code. Who this worker
// is its site says, so that its data come after it has joined.
Result<TrainSummary> Train(Flags& flags, Progress* progress, longhaul::process::SignalWatcher* signals,
                           HealthPort* health, int* code) {
  const bool in_site = !flags.connect.offload.empty();
  *code = kExitDataset;
  std::optional<Result<Data>> data;
  if (!in_site) {
    data = LoadData(flags);
    if (!data->ok()) return data->status();
  }
  Result<Client> client = Join(flags, in_site ? nullptr : &**data, progress);
  *code = !client.ok() && client.status().code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
  if (!client.ok()) return client.status();
  const longhaul::health::HealthWatch watch(health, SourceOf(*client));
  signals->Guard([&client, health](int signal) {
    const char* const why = signal == SIGINT    ? "interrupted (SIGINT)"
                            : signal == SIGTERM ? "told to stop (SIGTERM)"
                                                : "its terminal closed (SIGHUP)";
    if (health != nullptr) health->SetStopping(why);
    (void)client->Leave(Status(StatusCode::kCancelled, why));
  });
  flags.connect.rank = client->rank();
  flags.connect.world_size = client->world_size();
  if (in_site) data = LoadData(flags);
  if (!data->ok()) {
    signals->Guard({});
    *code = kExitDataset;
    (void)client->Leave(data->status());
    return data->status();
  }
  const longhaul::worker::Dataset& shard = (*data)->shard;
  const longhaul::worker::Dataset& test = (*data)->test;
  progress->Joined(*client);
  if (!client->LoadedState().empty())
    spdlog::info("--state-dir: found a state in {}", flags.connect.state_dir);
  std::string complaint;  // about the state, the last one
  bool begun = false;
  Result<TrainSummary> summary =
      longhaul::worker::Train(*client, shard, test, flags.train, [&](const RoundProgress& p) {
        begun = true;
        if (health != nullptr) health->NoteProgress();
        if (!p.state.ok() && std::exchange(complaint, p.state.message()) != complaint)
          spdlog::warn("--state-dir: {}; training goes on", complaint);
        progress->Round(p);
      });
  signals->Guard({});
  if (!summary.ok() && signals->interrupted()) {
    return Status(StatusCode::kCancelled, "interrupted; left the job");
  }
  // Such as an optimizer that the server does not know.
  if (!begun && summary.status().code() == StatusCode::kInvalidArgument) *code = kExitUsage;
  if (!summary.ok()) {
    (void)client->Leave(summary.status());  // the others learn why; no more than a courtesy
    return summary;
  }
  progress->Finished(*summary);
  if (Status s = client->Leave(); !s.ok()) spdlog::warn("the end was not orderly: {}", s.ToString());
  return summary;
}

int Run(Flags& flags, longhaul::process::SignalWatcher* signals, Output* output) {
  const auto health = longhaul::health::OpenPort(flags.metrics, "longhaul-worker");
  if (!health.ok()) {
    output->Complain(health.status().ToString());
    return longhaul::cli::ExitCodeOf(health.status());
  }
  if (*health && flags.progress != "none") output->Print(PortLine(**health, flags.progress == "json"));
  Progress progress(flags.progress, flags.security, output);
  int code = kExitFailure;
  const Result<TrainSummary> summary = Train(flags, &progress, signals, health->get(), &code);
  json result = {{"event", "failed"}};
  if (summary.ok()) {
    code = kExitOk;
    result = SummaryJson(*summary, flags.security);
  } else {
    output->Complain(longhaul::cli::WithFlagNames(summary.status().ToString()));
    result["code"] = StatusCodeName(summary.status().code());
    result["message"] = summary.status().message();
  }
  result["rank"] = flags.connect.rank;
  if (flags.json_file.empty()) return code;
  const std::string text = result.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  const Status written = longhaul::WriteFileAtomically(flags.json_file, text);
  if (!written.ok()) output->Complain("--json: " + written.message());
  return written.ok() || code != kExitOk ? code : kExitFailure;
}

// Every flag; see --help for what they mean.
void AddOptions(CLI::App& app, Flags& flags) {
  auto& t = flags.train;
  longhaul::cli::AddWorkerFlags(app, &flags);
  longhaul::cli::AddMemberFlags(app, &flags);
  app.add_option("--rounds", t.rounds, "Rounds of the whole job")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--batch", t.batch, "Images per worker and local step")
      ->capture_default_str()
      ->check(CLI::Range(1, 60'000));
  app.add_option("--lr", t.learning_rate, "Learning rate of the server's SGD (see --optimizer)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--momentum", t.momentum, "Momentum of the server's SGD, 0..1")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.9999));
  app.add_option(
         "--optimizer", t.optimizer,
         "The server's optimizer, for example adam:lr=0.001 [SGD by --lr and --momentum; with local steps "
         "sgd:lr=0.7,momentum=0.9,nesterov]")
      ->type_name("TEXT")
      ->excludes("--lr", "--momentum");
  app.add_option("--local-steps", t.local_steps,
                 "Steps of the local optimizer per round; what is pushed is old - new")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--local-optimizer", t.local_optimizer,
                 "Optimizer of the local steps, for example adamw:lr=0.001")
      ->type_name("TEXT")
      ->capture_default_str();
  app.add_option("--wire-dtype", flags.wire_dtype,
                 "Element type of gradients on the wire: float32 | bfloat16 | float16 | int8")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "int8"}));
  app.add_option("--result-dtype", flags.result_dtype,
                 "Element type of the parameters on their way back: float32 | bfloat16 | float16")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app.add_flag("--constant-lr", flags.constant_rate,
               "Do not let the learning rate fall linearly to zero (with adam at the server it never does)");
  app.add_option("--skew", flags.skew,
                 "Share of this worker's images that come from its own few classes, 0..1")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", t.seed, "Of model, shards and batches; the same on all workers")
      ->capture_default_str();
  app.add_option("--data", flags.data,
                 "Directory with Fashion-MNIST's IDX files (Debian: dataset-fashion-mnist)")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--eval-every", t.eval_every, "Rounds between test accuracies on rank 0; 0 = at the end")
      ->capture_default_str();
  longhaul::cli::AddConnectionFlags(app, &flags);
  app.add_option("--state-every", t.state_every, "With --state-dir: rounds between two saves [1]")
      ->check(CLI::Range(1, 1'000'000))
      ->needs("--state-dir");
  app.add_flag("--no-seccomp", flags.no_seccomp,
               "Keep the right to make any system call; else those that a worker does not need are given up "
               "before it connects");
  app.add_option("--ranks", flags.ranks, "With a command: its ranks on this host, from --rank on")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--restarts", flags.restarts, "With a command: how often a rank that fails is started again")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--hostfile", flags.hostfile,
                 "With a command: the job's hosts, HOST slots=N a line as for Open MPI; in place of --rank, "
                 "--ranks and "
                 "--world-size. Run the same on every host")
      ->type_name("FILE")
      ->excludes("--rank", "--ranks", "--world-size");
  app.add_option("--host", flags.host, "With --hostfile: this host in it [by its name and addresses]")
      ->type_name("NAME")
      ->needs("--hostfile");
  longhaul::health::AddMetricsFlag(app, &flags.metrics);
  longhaul::cli::AddInjectFlag(app);
  app.add_option("--progress", flags.progress, "none | text | json (one object per line on stdout)")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "text", "json"}));
  app.add_option("--json", flags.json_file, "Write the summary to this file")->type_name("FILE");
  app.add_option("--log-level", flags.log_level, "trace | debug | info | warn | error | off")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    // An environment hands values down unseen: these options must be chosen for this job.
    if (name == "--help" || name == "--version" || name == "--insecure") continue;
    option->envname(longhaul::cli::EnvName(name));
  }
}

// --- A command ---

// The options that concern the connection.
std::set<std::string> ConnectionOptions() {
  CLI::App app;
  longhaul::cli::ConnectFlags unused;
  longhaul::cli::AddWorkerFlags(app, &unused);
  longhaul::cli::AddMemberFlags(app, &unused);
  longhaul::cli::AddConnectionFlags(app, &unused);
  std::set<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.insert(option->get_name());
  return names;
}

// Those that were given, as the variables that hand them down to ranks.
std::vector<std::pair<std::string, std::string>> ConnectionEnvironment(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string& name : ConnectionOptions()) {
    if (name == "--rank" || name == "--world-size") continue;  // each rank has its own
    if (const CLI::Option* const given = app.get_option(name); given->count() > 0)
      variables.emplace_back(longhaul::cli::EnvName(name), given->results().back());
  }
  return variables;
}

// Options of the trainer mean nothing to a command, and those of a command nothing to the trainer.
Status CheckCommand(const CLI::App& app, const Flags& flags) {
  const std::set<std::string> launch = {"--ranks", "--restarts", "--hostfile", "--host"};
  std::set<std::string> meant = ConnectionOptions();
  meant.insert(launch.begin(), launch.end());
  meant.insert({"--config", "--log-level"});
  // Each start of a rank has its own.
  for (const char* name : {"--site-rank", "--incarnation", "--allow-core-dump"}) meant.erase(name);
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0) continue;
    if (flags.command.empty() && launch.contains(name))
      return {StatusCode::kInvalidArgument, name + " needs a command: -- COMMAND"};
    if (!flags.command.empty() && !meant.contains(name))
      return {StatusCode::kInvalidArgument, name + " (or its variable) has no meaning with a command"};
  }
  if (flags.hostfile.empty() || !flags.join.empty()) return {};
  return {StatusCode::kInvalidArgument,
          "--hostfile has no meaning with --offload: the ranks are this site's"};
}

int RunCommand(const CLI::App& app, const Flags& flags) {
  longhaul::worker::LaunchOptions options;
  options.command = flags.command;
  options.join = flags.join;
  options.restarts = flags.restarts;
  options.environment = ConnectionEnvironment(app);
  if (flags.connect.insecure) options.environment.emplace_back("LONGHAUL_INSECURE", flags.join);
  options.place = {flags.connect.rank, flags.ranks,
                   flags.join.empty() ? flags.ranks : flags.connect.world_size};
  if (!flags.hostfile.empty()) {
    const auto names =
        flags.host.empty() ? longhaul::worker::NamesOfThisHost() : std::vector<std::string>{flags.host};
    const auto place = longhaul::worker::PlaceFromHostfile(flags.hostfile, names);
    if (!place.ok()) return Fail(place.status(), kExitUsage);
    options.place = *place;
  }
  const auto& [first, ranks, size] = options.place;
  if (first + ranks > size) {
    return Fail(Status(StatusCode::kInvalidArgument, fmt::format("ranks {}..{} are not below --world-size {}",
                                                                 first, first + ranks - 1, size)),
                kExitUsage);
  }
  std::signal(SIGPIPE, SIG_IGN);
  const longhaul::EndingSignals signals(longhaul::worker::kHandedOn);  // before the first thread
  Output output("longhaul-worker", false,
                spdlog::level::from_str(flags.log_level == "error" ? "err" : flags.log_level));
  return longhaul::worker::Launch(options, signals);
}

}  // namespace

int main(int argc, char** argv) try {
  Flags flags;
  CLI::App app(
      "Joins a longhaul parameter server and trains: by a command of yours behind --, or a small network on "
      "Fashion-MNIST.",
      "longhaul-worker");
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  app.set_version_flag("--version", "longhaul-worker 0.1.0");
  AddOptions(app, flags);
  longhaul::cli::AddConfigFile(app, "rounds = 500");
  longhaul::cli::CheckValues(app);
  longhaul::cli::AddHelpPage(app);
  const auto names_site = [](const char* word) { return std::string_view(word).starts_with("--offload"); };
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));  // what follows is the command's
  const bool in_site =
      std::any_of(argv, dashes, names_site) || !longhaul::cli::Env("LONGHAUL_OFFLOAD").empty();
  const auto names_hosts = [](const char* word) { return std::string_view(word).starts_with("--hostfile"); };
  if (!in_site) TakeLauncherEnvironment(std::any_of(argv, dashes, names_hosts));
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kExitOk : kExitUsage;
  }
  if (dashes != end) flags.command.assign(dashes + 1, end);
  if (dashes != end && flags.command.empty())
    return Fail(Status(StatusCode::kInvalidArgument, "-- is followed by no command"), kExitUsage);
  if (Status valid = longhaul::cli::TakeAddress(app, &flags); !valid.ok()) return Fail(valid, kExitUsage);
  if (Status valid = CheckCommand(app, flags); !valid.ok()) return Fail(valid, kExitUsage);
  if (Status valid = longhaul::cli::TakeConnectFlags(&flags); !valid.ok()) return Fail(valid, kExitUsage);
  if (!flags.command.empty()) return RunCommand(app, flags);
  flags.train.wire_dtype = *longhaul::ParseDType(flags.wire_dtype);
  flags.train.result_dtype = *longhaul::ParseDType(flags.result_dtype);
  flags.train.decay_learning_rate = !flags.constant_rate;
  flags.weight_given = app.count("--weight") > 0;
  if (!flags.connect.state_dir.empty())
    flags.train.state_every = std::max<uint64_t>(1, flags.train.state_every);
  if (Status valid = longhaul::worker::Validate(flags.train); !valid.ok()) return Fail(valid, kExitUsage);
  (void)longhaul::keys::WipeFreedKeys();
  if (!flags.connect.key_file.empty() && !flags.allow_core_dump) longhaul::keys::ForbidCoreDumps();
  flags.security = "site";
  if (flags.connect.offload.empty()) {
    // A wrong key is a wrong command line, and found out before the data is read.
    const auto security = longhaul::keys::LoadSecurity({.key_file = flags.connect.key_file,
                                                        .insecure = flags.connect.insecure,
                                                        .job = flags.connect.job,
                                                        .cipher = flags.connect.cipher,
                                                        .expected_server = flags.connect.server_name});
    if (!security.ok()) return Fail(security.status(), kExitUsage);
    flags.security = security->kind;
  }
  // Found out now, not after hours of training.
  if (Status file = longhaul::PrepareResultFile(flags.json_file); !file.ok()) {
    return Fail(Status(file.code(), "--json: " + file.message()), kExitUsage);
  }
  // Before the first thread.
  longhaul::process::SignalWatcher signals(
      [] { spdlog::info("SIGHUP: a worker has nothing to reload and goes on"); });
  // Logs on stderr; stdout belongs to the progress.
  Output output("longhaul-worker", flags.progress == "json",
                spdlog::level::from_str(flags.log_level == "error" ? "err" : flags.log_level));
  if (flags.connect.insecure)
    spdlog::warn("INSECURE: gradients and parameters travel readable and forgeable");
  if (longhaul::inject::AnyEnabled()) spdlog::warn("rare events are injected (--inject): this is a test");
  return Run(flags, &signals, &output);
} catch (const std::exception& error) {  // memory, or threads, that the system does not give
  std::fprintf(stderr, "longhaul-worker: %s\n", error.what());
  return 1;
}
