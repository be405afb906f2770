// longhaul-operator: flags, signals, exit codes and probes around kube::Operator.
//
// Exit codes: docs/reference/exit_codes.md.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <string>

#include "base/flags/config_file.h"
#include "base/flags/exit_codes.h"
#include "base/flags/help_page.h"
#include "base/flags/number_checks.h"
#include "base/process/output.h"
#include "base/process/signal_watcher.h"
#include "health/metrics_flag.h"
#include "operator/controller/operator_loop.h"
#include "operator/metrics.h"
#include "operator/webhook/webhook_server.h"
#include "transport/keys/key_file.h"

namespace longhaul::kube {
namespace {

using cli::kExitUsage;

constexpr const char* kServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount";
constexpr Duration kTurn = std::chrono::seconds(1);
// A turn waits for a second at most, and works for milliseconds.
constexpr Duration kSilence = std::chrono::seconds(3);

struct Flags {
  std::string kubeconfig, context;
  std::string name_space;
  std::string lease_name_space, lease_name = "longhaul-operator", identity;
  bool no_lease = false;
  std::string key_secret = "longhaul-operator-key";
  std::string permission = "review";
  std::string server_image;
  int64_t gang_timeout_s = 300, server_timeout_s = 900;
  uint64_t max_objects = 20'000;
  int progress_port = 9464;
  std::string metrics;
  std::string webhook, certificates;
  std::string log_level = "info";
};

constexpr const char* kFooter = R"(
Examples:
  longhaul-operator --kubeconfig ~/.kube/config --lease-namespace longhaul-system --metrics 127.0.0.1:9464
  longhaul-operator --lease-namespace longhaul-system --identity $POD_NAME        (in a pod)

It makes of each TrainingJob a parameter server and a pod for each node (docs/howto/kubernetes.md). Of several
operators the one with the lease works; another one takes over within 20 s. SIGINT, SIGTERM or SIGHUP ends it in order:
the writes under way are waited for and the lease is given up, in 8 s at most; a second SIGINT or SIGTERM at once.
Exit codes: 0 told to stop, 1 it failed, 2 wrong usage, also of a kubeconfig, 3 cannot listen (--metrics, --webhook), 130 and 143.)";

void AddFlags(CLI::App& app, Flags& f) {
  app.set_version_flag("--version", "longhaul-operator 0.1.0");
  app.option_defaults()->always_capture_default();
  app.add_option("--kubeconfig", f.kubeconfig,
                 "how the API server is reached; none = by this pod's service account")
      ->type_name("FILE");
  app.add_option("--context", f.context, "of the kubeconfig; none = its current one")->needs("--kubeconfig");
  app.add_option("--namespace", f.name_space, "only jobs of this namespace; none = of all")
      ->type_name("NAME");
  app.add_option(
         "--lease-namespace", f.lease_name_space,
         "where the lease and the operator's key are; none = that of the service account or kubeconfig")
      ->type_name("NAME");
  app.add_option("--lease-name", f.lease_name, "of the Lease that says which operator works")
      ->type_name("NAME");
  app.add_option("--identity", f.identity,
                 "of this process in the lease; none = the host's name and some digits")
      ->type_name("NAME");
  app.add_flag("--no-lease", f.no_lease, "this is the only operator: none has to be waited for");
  app.add_option(
         "--key-secret", f.key_secret,
         "Secret of the operator's own key, from which the keys of jobs follow; made where there is none")
      ->type_name("NAME");
  app.add_option(
         "--permission", f.permission,
         "review: the API server is asked whether a job's requester, whom the webhook stamps, may use the "
         "profile; admission: an admission policy has asked already (deploy/kubernetes/admission-policy)")
      ->check(CLI::IsMember({"review", "admission"}));
  app.add_option("--server-image", f.server_image, "image of servers and engines; none = the job's")
      ->type_name("IMAGE");
  app.add_option("--gang-timeout", f.gang_timeout_s,
                 "a pod that no machine takes for so many seconds releases all pods of its job; 0 = never")
      ->check(CLI::Range(int64_t{0}, int64_t{86400}));
  app.add_option("--server-timeout", f.server_timeout_s,
                 "a job whose server is not ready for so many seconds has failed; 0 = never")
      ->check(CLI::Range(int64_t{0}, int64_t{604800}));
  app.add_option("--max-objects", f.max_objects,
                 "of each kind, that are kept; with more of them it does not work, by name")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000}));
  app.add_option("--progress-port", f.progress_port,
                 "metrics port of servers' pods, where rounds are read from; 0 = they are not read")
      ->check(CLI::Range(0, 65535));
  health::AddMetricsFlag(app, &f.metrics);
  CLI::Option* certificates =
      app.add_option("--webhook-certificates", f.certificates,
                     "folder with tls.crt, tls.key and path (what the API server alone knows) of the "
                     "admission webhooks; read again when they change; "
                     "without the files there are no webhooks")
          ->type_name("FOLDER");
  app.add_option("--webhook", f.webhook,
                 "where the API server asks about jobs (deploy/kubernetes/admission-webhook); none = nowhere")
      ->type_name("HOST:PORT")
      ->needs(certificates);
  app.add_option("--log-level", f.log_level, "what is logged on standard error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
  app.footer(kFooter);
  cli::AddConfigFile(app, "lease-namespace = \"longhaul-system\"");
  cli::CheckValues(app);
  cli::AddHelpPage(app);
}

spdlog::level::level_enum LogLevelOf(const Flags& flags) {
  return spdlog::level::from_str(flags.log_level == "error" ? "err" : flags.log_level);
}

int CannotStart(const Status& why, process::Output* output) {
  output->Complain(why.ToString());
  return cli::ExitCodeOf(why);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<api::ClusterAccess> AccessOf(const Flags& flags) {
  if (!flags.kubeconfig.empty()) {
    auto access = api::LoadKubeconfig(flags.kubeconfig, flags.context);
    // What is wrong with a file that was named is wrong usage, whatever it is.
    if (!access.ok())
      return Status(StatusCode::kInvalidArgument, "--kubeconfig: " + access.status().message());
    return access;
  }
  auto access = api::InCluster(kServiceAccount, Environment("KUBERNETES_SERVICE_HOST"),
                               Environment("KUBERNETES_SERVICE_PORT"));
  if (access.ok()) return access;
  return Status(StatusCode::kInvalidArgument, access.status().message() + "; elsewhere give --kubeconfig");
}

std::string IdentityOf(const Flags& flags) {
  if (!flags.identity.empty()) return flags.identity;
  char host[256] = "";
  (void)::gethostname(host, sizeof host - 1);
  // Another process of this host is another one.
  return std::string(host) + "_" + std::to_string(std::random_device{}());
}

void Log(LogLevel level, std::string_view text) {
  spdlog::log(level == LogLevel::kDebug
                  ? spdlog::level::debug
                  : (level == LogLevel::kInfo ? spdlog::level::info : spdlog::level::warn),
              "{}", text);
}

// Of lists, of several kinds at once, in 50 MB. etcd takes 1.5 MiB of an object.
constexpr size_t kMostOfPage = size_t{2} << 20;

OperatorOptions OptionsOf(const Flags& flags, const std::string& own_name_space) {
  OperatorOptions options;
  options.elect = !flags.no_lease;
  options.lease.name_space = own_name_space;
  options.lease.name = flags.lease_name;
  options.lease.identity = IdentityOf(flags);
  ControllerOptions& c = options.controller;
  c.name_space = flags.name_space;
  c.key_name_space = own_name_space;
  c.key_name = flags.key_secret;
  c.ask_permission = flags.permission == "review";
  c.progress_port = flags.progress_port;
  c.settings.server_image = flags.server_image;
  c.settings.gang_timeout = std::chrono::seconds(flags.gang_timeout_s);
  c.settings.server_timeout = std::chrono::seconds(flags.server_timeout_s);
  c.informer.max_objects = flags.max_objects;
  c.sites.informer.max_objects = flags.max_objects;
  c.sites.rest.max_response_bytes = kMostOfPage;
  c.wall = [] {
    return Instant::FromNanoseconds(
        std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  };
  c.log = Log;
  return options;
}

// None without --webhook, and without a certificate: the same Deployment runs with an admission policy.
Result<std::unique_ptr<webhook::WebhookServer>> OpenWebhooks(const Flags& flags,
                                                             const api::ClusterAccess& access,
                                                             Random chance) {
  if (flags.webhook.empty()) return std::unique_ptr<webhook::WebhookServer>();
  webhook::WebhookOptions options;
  options.listen = flags.webhook;
  options.certificates_folder = flags.certificates;
  auto server = webhook::WebhookServer::Open(options, access, {}, chance);
  if (server.status().code() == StatusCode::kNotFound) {
    spdlog::warn("no admission webhooks: {}", server.status().message());
    return std::unique_ptr<webhook::WebhookServer>();
  }
  if (!server.ok()) return Status(server.status().code(), "--webhook: " + server.status().message());
  spdlog::info("admission webhooks at {}", (*server)->address().ToString());
  return server;
}

health::HealthSource SourceOf(const Operator& work, const webhook::WebhookServer* webhooks) {
  const auto look = [&work] {
    const OperatorReport report = work.report();
    health::LoopState state{.answers = work.silent() < kSilence, .not_ready = report.not_ready};
    // Webhooks are answered without the lease, too.
    if (!report.leads && state.not_ready.empty() && report.holder.empty())
      state.not_ready = "the API server has not said which operator has the lease";
    return state;
  };
  const auto collect = [&work, webhooks](health::MetricPage* page) {
    AddMetrics(work.report(), page);
    if (webhooks != nullptr) AddWebhookMetrics(webhooks->state(), page);
    return work.silent() < kSilence;
  };
  return {look, collect};
}

int Serve(const Flags& flags, process::SignalWatcher* signals, process::Output* output) {
  const auto access = AccessOf(flags);
  if (!access.ok()) return CannotStart(access.status(), output);
  std::string own = flags.lease_name_space.empty() ? access->name_space : flags.lease_name_space;
  if (own.empty()) own = "default";
  const auto health = health::OpenPort(flags.metrics, "longhaul-operator");
  if (!health.ok()) return CannotStart(health.status(), output);
  if (*health) output->Print(PortLine(**health, false));

  std::random_device seed;
  Random chance((uint64_t{seed()} << 32) | seed());
  api::RestOptions rest;
  rest.max_response_bytes = kMostOfPage;
  auto client = api::RestClient::Make(*access, rest, chance.Fork(1));
  if (!client.ok()) return CannotStart(client.status(), output);
  const auto webhooks = OpenWebhooks(flags, *access, chance.Fork(3));
  if (!webhooks.ok()) return CannotStart(webhooks.status(), output);
  OperatorOptions options = OptionsOf(flags, own);
  if (*webhooks) options.on_key = [&](const std::string& key) { (*webhooks)->SetKey(key); };
  Operator work(*std::move(client), options, chance.Fork(2));
  spdlog::info(
      "API server {}, {}{}", access->server,
      flags.name_space.empty() ? "jobs of all namespaces" : "jobs of namespace " + flags.name_space,
      flags.no_lease ? "" : ", lease " + own + "/" + flags.lease_name + " as " + options.lease.identity);
  const health::HealthWatch watch(health->get(), SourceOf(work, webhooks->get()));
  signals->Guard([&](int signal) {
    if (*health) (*health)->SetStopping("told to stop by signal " + std::to_string(signal));
    spdlog::info("signal {}: waiting for the writes under way, and giving the lease up", signal);
    work.Stop();
  });
  while (!work.stopped()) work.Turn(kTurn);
  signals->Guard({});
  return 0;
}

int Run(int argc, char** argv) {
  (void)keys::WipeFreedKeys();
  CLI::App app{"The operator of training jobs on Kubernetes: makes servers and nodes of TrainingJobs.",
               "longhaul-operator"};
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  keys::ForbidCoreDumps();
  process::SignalWatcher signals;  // before the first thread
  process::Output output("longhaul-operator", false, LogLevelOf(flags));
  return Serve(flags, &signals, &output);
}

}  // namespace
}  // namespace longhaul::kube

int main(int argc, char** argv) try {
  return longhaul::kube::Run(argc, argv);
} catch (const std::exception& error) {  // memory, or threads, that the system does not give
  std::fprintf(stderr, "longhaul-operator: %s\n", error.what());
  return 1;
}
