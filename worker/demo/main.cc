// longhaul-trainer: a small network on Fashion-MNIST, trained by a parameter server as any program of a
// user's is: longhaul-worker starts it, its environment says where the job is and which rank this one is, and
// what it knows of the client is the public API. Here are its flags, signals and exit codes; the training is
// in trainer_loop.h.

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
#include <string_view>

#include "base/files.h"
#include "base/flags/config_file.h"
#include "base/flags/counter_json.h"
#include "base/flags/environment.h"
#include "base/flags/exit_codes.h"
#include "base/flags/flag_names.h"
#include "base/flags/help_page.h"
#include "base/flags/job_json.h"
#include "base/flags/number_checks.h"
#include "base/process/output.h"
#include "base/process/signal_watcher.h"
#include "health/metrics_flag.h"
#include "longhaul/client.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"
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

struct Flags {
  longhaul::ConnectOptions connect;  // of the environment
  longhaul::worker::TrainOptions train;
  bool constant_rate = false;
  bool no_seccomp = false;
  double skew = 0;
  std::string wire_dtype = "float32", result_dtype = "float32";
  std::string data = longhaul::worker::kDefaultDatasetDirectory;
  std::string progress = "text";
  std::string json_file;
  std::string metrics;
  std::string log_level = "info";
  std::string security;  // tls-psk, tls-certificates or insecure
};

constexpr const char* kFooter = R"(
Examples:
  longhaul-worker --join 127.0.0.1:7700 --insecure --rounds 100
  longhaul-worker --join ams.example:7700 --key job.key --world-size 4 --ranks 4 -- longhaul-trainer --rounds 500

Where the job is, which rank this one is and the connection say LONGHAUL_<OPTION> for the options of longhaul-worker,
which sets them for what it starts, and the variables of torchrun, Open MPI and ps-lite. Every option here can also be
given as LONGHAUL_<OPTION>, for example LONGHAUL_ROUNDS=500.
Exit codes: 0 trained to the end, 1 failure (named on stderr), 2 usage, 3 dataset missing or damaged, or
--metrics cannot listen, 130 and 143 ended at once by a signal. SIGINT, SIGTERM and a terminal that closes: it leaves
the job in order; a second signal ends it at once.)";

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
  std::fprintf(stderr, "longhaul-trainer: %s\n", longhaul::cli::WithFlagNames(why.ToString()).c_str());
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
  if (data != nullptr && longhaul::cli::Env("LONGHAUL_WEIGHT").empty()) {
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
  const auto look = [&client] {
    return longhaul::health::LoopState{.answers = client.Answers(), .not_ready = client.status().message()};
  };
  const auto collect = [&client](longhaul::health::MetricPage* page) {
    if (!client.Answers()) return false;
    const ClientStats stats = client.stats();
    page->Add<ClientStats>("client", longhaul::kClientCounters, {{&stats}});
    return true;
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
  const auto health = longhaul::health::OpenPort(flags.metrics, "longhaul-trainer");
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
                 "Element type of gradients on the wire: float32 | bfloat16 | float16 | int8 | int4 | int2")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "int8", "int4", "int2"}));
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
  app.add_option("--state-every", t.state_every,
                 "With longhaul-worker's --state-dir: rounds between two saves [1]")
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag("--no-seccomp", flags.no_seccomp,
               "Keep the right to make any system call; else those that a worker does not need are given up "
               "before it connects");
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
    if (name != "--help" && name != "--version") option->envname(longhaul::cli::EnvName(name));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  Flags flags;
  CLI::App app(
      "Trains a small network on Fashion-MNIST as a rank of a job. longhaul-worker starts it; a program of "
      "yours may "
      "stand in its place.",
      "longhaul-trainer");
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  app.set_version_flag("--version", "longhaul-trainer 0.1.0");
  AddOptions(app, flags);
  longhaul::cli::AddConfigFile(app, "rounds = 500");
  longhaul::cli::CheckValues(app);
  longhaul::cli::AddHelpPage(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kExitOk : kExitUsage;
  }
  const Result<longhaul::ConnectOptions> connect = longhaul::OptionsFromEnvironment();
  if (!connect.ok()) {
    return Fail(Status(connect.status().code(),
                       connect.status().message() + ": longhaul-worker gives it, by LONGHAUL_<OPTION>"),
                kExitUsage);
  }
  flags.connect = *connect;
  if (flags.connect.state_dir.empty() && flags.train.state_every > 0)
    return Fail(Status(StatusCode::kInvalidArgument, "--state-every needs --state-dir"), kExitUsage);
  flags.train.wire_dtype = *longhaul::ParseDType(flags.wire_dtype);
  flags.train.result_dtype = *longhaul::ParseDType(flags.result_dtype);
  flags.train.decay_learning_rate = !flags.constant_rate;
  if (!flags.connect.state_dir.empty())
    flags.train.state_every = std::max<uint64_t>(1, flags.train.state_every);
  if (Status valid = longhaul::worker::Validate(flags.train); !valid.ok()) return Fail(valid, kExitUsage);
  (void)longhaul::keys::WipeFreedKeys();
  if (!flags.connect.key_file.empty() && longhaul::cli::Env("LONGHAUL_ALLOW_CORE_DUMP").empty())
    longhaul::keys::ForbidCoreDumps();
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
  Output output("longhaul-trainer", flags.progress == "json",
                spdlog::level::from_str(flags.log_level == "error" ? "err" : flags.log_level));
  if (flags.connect.insecure)
    spdlog::warn("INSECURE: gradients and parameters travel readable and forgeable");
  if (longhaul::inject::AnyEnabled()) spdlog::warn("rare events are injected (--inject): this is a test");
  return Run(flags, &signals, &output);
} catch (const std::exception& error) {  // memory, or threads, that the system does not give
  std::fprintf(stderr, "longhaul-trainer: %s\n", error.what());
  return 1;
}
