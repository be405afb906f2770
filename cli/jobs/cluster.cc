#include "cli/jobs/cluster.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "proto/utf8.h"
#include "transport/udp/clock.h"

namespace longhaul::cli {
namespace {

using kube::api::ApiCode;
using kube::api::ApiRequest;
using kube::api::ApiResult;
using kube::api::ClusterAccess;
using kube::api::Verb;

constexpr size_t kShownBytes = 2000;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);  // before there is another thread
  return value == nullptr ? std::string() : value;
}

Result<ClusterAccess> FindAccess(const ClusterOptions& options) {
  if (!options.kubeconfig.empty()) return kube::api::LoadKubeconfig(options.kubeconfig, options.context);
  if (const std::string named = Environment("KUBECONFIG"); !named.empty()) {
    if (named.find(':') == std::string::npos) return kube::api::LoadKubeconfig(named, options.context);
    return Status(StatusCode::kInvalidArgument,
                  "KUBECONFIG names several files, which are not merged here: name one with --kubeconfig, or "
                  "merge them (kubectl config view --flatten)");
  }
  const std::string home = Environment("HOME");
  std::error_code ignored;
  if (const std::string usual = home + "/.kube/config";
      !home.empty() && std::filesystem::exists(usual, ignored))
    return kube::api::LoadKubeconfig(usual, options.context);
  Result<ClusterAccess> pod =
      kube::api::InCluster("/var/run/secrets/kubernetes.io/serviceaccount",
                           Environment("KUBERNETES_SERVICE_HOST"), Environment("KUBERNETES_SERVICE_PORT"));
  if (pod.ok()) return pod;
  return Status(StatusCode::kNotFound,
                "which cluster? There is no kubeconfig: name one with --kubeconfig, or in KUBECONFIG");
}

// In RBAC's words.
const char* VerbOf(const ApiRequest& request) {
  switch (request.verb) {
    case Verb::kCreate:
      return "create";
    case Verb::kList:
      return "list";
    case Verb::kDelete:
      return "delete";
    default:
      return "get";
  }
}

std::string ResourceOf(const ApiRequest& request) {
  std::string resource = request.type.plural;
  if (request.verb == Verb::kLog) resource += "/log";
  if (!request.type.group.empty()) resource += "." + request.type.group;
  return resource;
}

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string ExplainForbidden(const ApiRequest& request, const std::string& words) {
  // Admission says what is missing by itself.
  if (Has(words, "denied the request") || Has(words, "ValidatingAdmissionPolicy") ||
      Has(words, "denied request"))
    return words;
  const std::string where =
      request.name_space.empty() ? "all namespaces" : "the namespace " + request.name_space;
  return words + "; that takes the verb " + VerbOf(request) + " on " + ResourceOf(request) + " in " + where +
         ": ask an administrator for a role with it, such as longhaul-user";
}

std::string ExplainNotFound(const ApiRequest& request, const ApiResult& failure, const std::string& words) {
  const bool of_job = request.type.plural == "trainingjobs";
  if (of_job && failure.reason.empty()) {
    return "the cluster knows no trainingjobs: an administrator installs them (kubectl apply -k "
           "deploy/kubernetes)";
  }
  if (of_job && !request.name.empty()) {
    return "there is no job " + request.name + " in the namespace " + request.name_space + "; " +
           CommandOf("jobs", request.name_space) + " lists those that there are";
  }
  return words;
}

}  // namespace

Result<Cluster> OpenCluster(const ClusterOptions& options) {
  (void)std::signal(SIGPIPE, SIG_IGN);  // as RestClient requires
  const Result<ClusterAccess> access = FindAccess(options);
  if (!access.ok()) return access.status();
  kube::api::RestOptions rest;
  rest.user_agent = "longhaul";
  rest.request_limit = std::chrono::seconds(30);  // a person waits
  auto api = kube::api::RestClient::Make(*access, rest, Random(udp::EntropySeed()));
  if (!api.ok()) return api.status();
  Cluster cluster{std::move(*api), options.name_space};
  if (cluster.name_space.empty()) cluster.name_space = access->name_space;
  return cluster;
}

ApiRequest OfJobs(Verb verb, const std::string& name_space, const std::string& name) {
  ApiRequest request;
  request.verb = verb;
  request.type = {"longhaul.dev", "v1alpha1", "trainingjobs", true};
  request.name_space = name_space;
  request.name = name;
  return request;
}

ApiRequest OfPods(Verb verb, const std::string& name_space, const std::string& name) {
  ApiRequest request = OfJobs(verb, name_space, name);
  request.type = {"", "v1", "pods", true};
  return request;
}

std::string CommandOf(const std::string& words, const std::string& name_space) {
  return "`longhaul " + words + " -n " + name_space + "`";
}

std::string Explain(const ApiRequest& request, const ApiResult& failure) {
  const std::string words = wire::Printable(failure.message, kShownBytes);
  switch (failure.code) {
    case ApiCode::kAlreadyExists: {
      const std::string name =
          wire::Printable(kube::api::TextAt(request.body, {"metadata", "name"}), kShownBytes);
      return "task name already exists: there is a job " + name + " in the namespace " + request.name_space +
             "; choose another name, or end that one first (" +
             CommandOf("cancel " + name, request.name_space) + ")";
    }
    case ApiCode::kForbidden:
      return ExplainForbidden(request, words);
    case ApiCode::kUnauthorized:
      return "the API server does not take the credentials of this kubeconfig: ask for new ones: " + words;
    case ApiCode::kNotFound:
      return ExplainNotFound(request, failure, words);
    case ApiCode::kInvalid:
      return words;
    default:
      break;
  }
  const std::string text = wire::Printable(failure.ToString(), kShownBytes);
  const bool unsure =
      request.verb == Verb::kCreate && !failure.not_sent && failure.code != ApiCode::kThrottled;
  return unsure
             ? text + "; whether the job was created is not known: " + CommandOf("jobs", request.name_space) +
                   " says it"
             : text;
}

int ExitCodeOf(const ApiResult& failure) {
  switch (failure.code) {
    case ApiCode::kUnreachable:
    case ApiCode::kUntrusted:
    case ApiCode::kTimedOut:
    case ApiCode::kServerError:
    case ApiCode::kThrottled:
    case ApiCode::kMalformed:
    case ApiCode::kTooLarge:
      return kJobsUnreachable;
    default:
      return kJobsRefused;
  }
}

}  // namespace longhaul::cli
