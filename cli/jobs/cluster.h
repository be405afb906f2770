// The cluster that `longhaul submit`, `jobs`, `logs` and `cancel` talk to: as kubectl finds it, and its
// refusals in words that name what to do.
#pragma once

#include <memory>
#include <string>

#include "longhaul/status.h"
#include "operator/api/rest_client.h"

namespace longhaul::cli {

struct ClusterOptions {
  std::string kubeconfig;  // empty: $KUBECONFIG, ~/.kube/config, or in a pod its service account
  std::string context;     // empty: the current one
  std::string name_space;  // empty: the context's
};

struct Cluster {
  std::unique_ptr<kube::api::RestClient> api;
  std::string name_space;
};

// No request is sent. Errors: kInvalidArgument, kNotFound, kPermissionDenied, naming the file and the remedy.
Result<Cluster> OpenCluster(const ClusterOptions& options);

// Where TrainingJobs are, and pods.
kube::api::ApiRequest OfJobs(kube::api::Verb verb, const std::string& name_space,
                             const std::string& name = "");
kube::api::ApiRequest OfPods(kube::api::Verb verb, const std::string& name_space, const std::string& name);

// A command that a message names, in the namespace that it speaks of.
std::string CommandOf(const std::string& words, const std::string& name_space);

// What a failure means to a person, and what to do: 409 a name that exists, 403 the verb that is missing, 404
// what is not there. The API server's own words stand in it, where they say more.
std::string Explain(const kube::api::ApiRequest& request, const kube::api::ApiResult& failure);

// Exit codes of the four commands.
inline constexpr int kJobsRefused = 1;  // the API server refuses, the job has failed, or there is none
inline constexpr int kJobsUsage = 2;
inline constexpr int kJobsUnreachable = 3;  // no API server there, or it does not answer
int ExitCodeOf(const kube::api::ApiResult& failure);

}  // namespace longhaul::cli
