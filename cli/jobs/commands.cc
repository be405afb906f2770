#include "cli/jobs/commands.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/jobs/job_text.h"
#include "operator/resource/training_job.h"
#include "proto/utf8.h"
#include "transport/udp/clock.h"

namespace longhaul::cli {
namespace {

using kube::api::ApiCode;
using kube::api::ApiRequest;
using kube::api::ApiResult;
using kube::api::Verb;
using nlohmann::json;

// Between two lines that differ in the round alone.
constexpr Duration kRoundsEvery = std::chrono::seconds(10);

int Fail(const char* command, const std::string& what, int code) {
  std::fprintf(stderr, "longhaul %s: %s\n", command, what.c_str());
  return code;
}

bool Write(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

int Print(const char* command, std::string_view text) {
  return Write(text) ? 0 : Fail(command, "cannot write to standard output", kJobsRefused);
}

Instant WallClock() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return Instant::FromNanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

int Usage(const char* command, const Status& why) { return Fail(command, why.message(), kJobsUsage); }

// What a name may be is known before anything is asked.
Status CheckJobName(const std::string& name) {
  if (kube::IsSubdomain(name)) return {};
  return {StatusCode::kInvalidArgument,
          "\"" + wire::Printable(name, 80) + "\" is no name of a job; `longhaul jobs` lists them"};
}

std::string UidOf(const json& object) { return kube::TextAt(object, {"metadata", "uid"}); }

std::string JsonText(const json& value) {
  return value.dump(2, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace) + "\n";
}

// --- submit

Result<json> JobOf(SubmitOptions* options) {
  if (!options->file.empty()) {
    const auto text = kube::api::ReadSmallFile(options->file, kMaxJobFileBytes, "the job");
    if (!text.ok()) return text.status();
    auto job = ReadJobText(*text);
    if (!job.ok()) return Status(job.status().code(), options->file + ": " + job.status().message());
    return job;
  }
  auto script = kube::api::ReadSmallFile(options->script_file, kube::kMostScriptBytes, "--script");
  if (!script.ok()) return script.status();
  options->job.script = std::move(*script);
  return MakeJob(options->job);
}

// Follows a job to its end.
class Watcher {
 public:
  Watcher(Cluster* cluster, const SubmitOptions& options, const json& job)
      : cluster_(*cluster),
        options_(options),
        request_(OfJobs(Verb::kGet, kube::TextAt(job, {"metadata", "namespace"}),
                        kube::TextAt(job, {"metadata", "name"}))),
        uid_(UidOf(job)) {
    request_.max_attempts = 1;  // asked again soon anyway
  }

  int Run() {
    heard_ = udp::Now();
    for (;;) {
      const ApiResult result = cluster_.api->Call(request_);
      if (const auto code = result.ok() ? OnJob(result.body) : OnFailure(result)) return *code;
      std::this_thread::sleep_for(options_.look_every);
    }
  }

 private:
  std::optional<int> OnJob(const json& job) {
    heard_ = udp::Now();
    if (UidOf(job) != uid_)
      return Fail("submit", "the job was deleted, and there is another one of its name", kJobsRefused);
    const kube::JobStatus status = kube::ParseJobStatus(kube::At(job, {"status"}));
    Show(status);
    if (!kube::IsTerminal(status.phase)) return std::nullopt;
    return status.phase == kube::Phase::kSucceeded ? 0 : kJobsRefused;
  }
  std::optional<int> OnFailure(const ApiResult& failure) {
    if (failure.code == ApiCode::kNotFound) return Fail("submit", "the job was deleted", kJobsRefused);
    const int code = ExitCodeOf(failure);
    if (code == kJobsUnreachable && udp::Now() - heard_ < options_.patience) return std::nullopt;
    return Fail("submit", "the job goes on, and is not watched any more: " + Explain(request_, failure),
                code);
  }
  void Show(const kube::JobStatus& status) {
    kube::JobStatus without_round = status;
    without_round.round.reset();
    const std::string state = JobProgress(without_round);
    const bool news = state != state_;
    if (!news && (!status.round || udp::Now() - shown_ < kRoundsEvery)) return;
    state_ = state;
    shown_ = udp::Now();
    (void)Write(request_.name + ": " + JobProgress(status) + "\n");
  }

  Cluster& cluster_;
  const SubmitOptions& options_;
  ApiRequest request_;
  const std::string uid_;
  std::string state_;
  Instant heard_, shown_;
};

// --- jobs

// All pages. What was asked last is in `request`, for Explain.
Result<std::vector<json>> ListAll(Cluster* cluster, ApiRequest* request, ApiResult* failure) {
  std::vector<json> items;
  for (;;) {
    *failure = cluster->api->Call(*request);
    if (!failure->ok()) return Status(StatusCode::kUnavailable, Explain(*request, *failure));
    json& list = failure->body["items"];
    if (list.is_array()) {
      for (json& item : list) items.push_back(std::move(item));
    }
    request->continue_token = kube::api::TextAt(failure->body, {"metadata", "continue"});
    if (request->continue_token.empty()) return items;
  }
}

int ShowAll(Cluster* cluster, const JobsOptions& options) {
  ApiRequest request = OfJobs(Verb::kList, options.all_namespaces ? "" : cluster->name_space);
  ApiResult failure;
  const auto jobs = ListAll(cluster, &request, &failure);
  if (!jobs.ok()) return Fail("jobs", jobs.status().message(), ExitCodeOf(failure));
  if (options.json) return Print("jobs", JsonText(*jobs));
  if (!jobs->empty()) return Print("jobs", JobTable(*jobs, options.all_namespaces, WallClock()));
  std::fprintf(stderr, "no jobs%s\n",
               options.all_namespaces ? "" : (" in the namespace " + cluster->name_space).c_str());
  return 0;
}

int ShowOne(Cluster* cluster, const JobsOptions& options) {
  const ApiRequest request = OfJobs(Verb::kGet, cluster->name_space, options.name);
  const ApiResult job = cluster->api->Call(request);
  if (!job.ok()) return Fail("jobs", Explain(request, job), ExitCodeOf(job));
  if (options.json) return Print("jobs", JsonText(job.body));
  ApiRequest of_events = OfPods(Verb::kList, cluster->name_space, "");
  of_events.type.plural = "events";
  of_events.field_selector = "involvedObject.kind=TrainingJob,involvedObject.name=" + options.name;
  if (const std::string uid = UidOf(job.body); !uid.empty())
    of_events.field_selector += ",involvedObject.uid=" + uid;
  ApiResult failure;
  const auto events = ListAll(cluster, &of_events, &failure);
  const int code =
      Print("jobs", JobDescription(job.body, events.ok() ? *events : std::vector<json>(), WallClock()));
  if (!events.ok()) std::fprintf(stderr, "no events: %s\n", events.status().message().c_str());
  return code;
}

// --- logs

// Until the log's end.
ApiResult Stream(kube::api::RestClient* api, const ApiRequest& request, bool* written) {
  const auto call = api->Start(request);
  if (!call.ok()) return kube::api::MakeError(ApiCode::kInvalid, call.status().message());
  for (;;) {
    api->Poll(std::chrono::hours(1));
    while (auto event = api->Next()) {
      if (event->done) return std::move(event->result);
      *written = Write(event->log);
      if (*written) continue;
      api->Cancel(*call);
      return {};
    }
  }
}

// There is no such job, it has no such node, or the node has no pod now, or not in this cluster.
std::string WhyNoPod(Cluster* cluster, const LogsOptions& options, const std::string& pod,
                     const std::string& words) {
  const ApiRequest look = OfJobs(Verb::kGet, cluster->name_space, options.name);
  const ApiResult job = cluster->api->Call(look);
  if (job.code == ApiCode::kNotFound) return Explain(look, job);
  const auto nodes = kube::ParseJobStatus(kube::At(job.body, {"status"})).nodes;
  const std::string node = std::to_string(options.node);
  const auto found = std::ranges::find(nodes, pod, &kube::NodeStatus::name);
  if (!nodes.empty() && found == nodes.end())
    return "the job " + options.name + " has no node " + node + ": it has the nodes 0 to " +
           std::to_string(nodes.size() - 1);
  for (const kube::Json& site : kube::At(job.body, {"spec", "sites"})) {
    if (found == nodes.end() || kube::TextAt(site, {"name"}) != found->site ||
        kube::TextAt(site, {"kubeconfigSecret"}).empty())
      continue;
    return "node " + node + " of the job " + options.name + " is a pod of another cluster, the site " +
           found->site + ": name that cluster with --kubeconfig or --context";
  }
  return "node " + node + " of the job " + options.name + " has no pod now; " +
         CommandOf("jobs " + options.name, cluster->name_space) + " says why: " + words;
}

bool HasNotStarted(const ApiResult& failure) {
  return failure.http == 400 && failure.message.find("waiting to start") != std::string::npos;
}

}  // namespace

int RunSubmit(SubmitOptions options) {
  auto job = JobOf(&options);
  if (!job.ok()) return Usage("submit", job.status());
  auto cluster = OpenCluster(options.cluster);
  if (!cluster.ok()) return Usage("submit", cluster.status());
  if (Status right = PrepareJob(options.cluster.name_space, cluster->name_space, &*job); !right.ok())
    return Usage("submit", right);
  ApiRequest request = OfJobs(Verb::kCreate, kube::TextAt(*job, {"metadata", "namespace"}));
  request.body = std::move(*job);
  request.field_manager = "longhaul";
  const ApiResult created = cluster->api->Call(request);
  if (!created.ok()) return Fail("submit", Explain(request, created), ExitCodeOf(created));
  const std::string name = kube::TextAt(request.body, {"metadata", "name"});
  std::string line = "created the job " + name + " in the namespace " + request.name_space;
  if (!options.wait) line += "; " + CommandOf("jobs " + name, request.name_space) + " shows how it goes";
  if (const int code = Print("submit", line + "\n"); code != 0 || !options.wait) return code;
  return Watcher(&*cluster, options, created.body).Run();
}

int RunJobs(const JobsOptions& options) {
  if (!options.name.empty()) {
    if (Status named = CheckJobName(options.name); !named.ok()) return Usage("jobs", named);
  }
  auto cluster = OpenCluster(options.cluster);
  if (!cluster.ok()) return Usage("jobs", cluster.status());
  return options.name.empty() ? ShowAll(&*cluster, options) : ShowOne(&*cluster, options);
}

int RunLogs(const LogsOptions& options) {
  if (Status named = CheckJobName(options.name); !named.ok()) return Usage("logs", named);
  auto cluster = OpenCluster(options.cluster);
  if (!cluster.ok()) return Usage("logs", cluster.status());
  ApiRequest request =
      OfPods(Verb::kLog, cluster->name_space, options.name + "-node-" + std::to_string(options.node));
  request.container = options.container;
  request.follow = options.follow;
  for (;;) {
    bool written = true;
    const ApiResult result = Stream(cluster->api.get(), request, &written);
    if (!written) return Fail("logs", "cannot write to standard output", kJobsRefused);
    if (result.ok()) return 0;
    if (HasNotStarted(result) && options.follow) {
      std::this_thread::sleep_for(options.look_every);
      continue;
    }
    std::string what = Explain(request, result);
    if (HasNotStarted(result))
      what = "node " + std::to_string(options.node) + " of the job " + options.name +
             " has not started yet; --follow waits for it: " + what;
    if (result.code == ApiCode::kNotFound) what = WhyNoPod(&*cluster, options, request.name, what);
    return Fail("logs", what, ExitCodeOf(result));
  }
}

int RunCancel(const CancelOptions& options) {
  if (Status named = CheckJobName(options.name); !named.ok()) return Usage("cancel", named);
  auto cluster = OpenCluster(options.cluster);
  if (!cluster.ok()) return Usage("cancel", cluster.status());
  const ApiRequest look = OfJobs(Verb::kGet, cluster->name_space, options.name);
  const ApiResult found = cluster->api->Call(look);
  if (!found.ok()) return Fail("cancel", Explain(look, found), ExitCodeOf(found));
  ApiRequest request = OfJobs(Verb::kDelete, cluster->name_space, options.name);
  request.uid = UidOf(found.body);
  const ApiResult deleted = cluster->api->Call(request);
  // A repeated deletion finds what the first one has done.
  if (!deleted.ok() && !(deleted.code == ApiCode::kNotFound && deleted.attempts > 1))
    return Fail("cancel", Explain(request, deleted), ExitCodeOf(deleted));
  const kube::JobStatus status = kube::ParseJobStatus(kube::At(found.body, {"status"}));
  return Print("cancel", "deleted the job " + options.name + " in the namespace " + cluster->name_space +
                             " (it was " + JobProgress(status) +
                             "); its pods, its server and its checkpoints go with it\n");
}

}  // namespace longhaul::cli
