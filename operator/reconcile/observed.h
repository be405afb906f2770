// What is known of one job at one moment: all that Reconcile sees.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "operator/plan/job_plan.h"
#include "operator/resource/training_job.h"

namespace longhaul::kube {

// Labels of every object of a job. Objects of an earlier job of the same name have another uid.
inline constexpr const char* kJobLabel = "longhaul.dev/job";
inline constexpr const char* kUidLabel = "longhaul.dev/job-uid";
inline constexpr const char* kRoleLabel = "longhaul.dev/role";  // of pods: worker or server
inline constexpr const char* kRankLabel = "longhaul.dev/rank";
inline constexpr const char* kIncarnationLabel = "longhaul.dev/incarnation";
inline constexpr const char* kPlanLabel = "longhaul.dev/plan";
inline constexpr const char* kSiteLabel = "longhaul.dev/site";
inline constexpr const char* kServerLabel = "longhaul.dev/server";  // Fingerprint of its address
inline constexpr const char* kStartLabel =
    "longhaul.dev/start-workers";  // of servers: how many start, 0: all

// Of the operator's command line.
struct Settings {
  // Image of the server and of the pods' engines; "": the job's.
  std::string server_image;
  // A pod that no machine can take for so long: all pods of the job are released. Zero: never.
  Duration gang_timeout = std::chrono::minutes(5);
  // A server that is not ready for so long in mid-job: the job fails. Workers wait 10 minutes for one that is
  // gone (kReconnectSeconds), and then end by themselves.
  Duration server_timeout = std::chrono::minutes(15);
  // What remote sites may take to let their objects go once a job is deleted.
  Duration finalizer_timeout = std::chrono::minutes(5);
};

// Of an API server: "" is the one that has the job, else spec.sites[].name of a site with a kubeconfig.
struct SiteObject {
  std::string cluster;
  Json object;
};

enum class Permission { kUnknown, kAllowed, kDenied };

struct Observed {
  Json job;
  std::optional<Json> profile;  // none: there is none of that name
  // All that have the label kJobLabel with the job's name, pods and StatefulSet and the rest, with apiVersion
  // and kind. Secrets are not read.
  std::vector<SiteObject> objects;
  // False: of scripts that are not short, of the job and of plans, the marks alone (stamp.h).
  bool whole_script = false;
  std::optional<Json> script_map;  // the ConfigMap of spec.script.configMapRef
  std::vector<FreeGpus> free;      // with allocation.capacity Discovered
  // May the requester use the profile (or, for an inline configuration, any)?
  Permission permission = Permission::kUnknown;
  std::string permission_message;  // denied: why
  std::optional<int64_t> round;
  // 64 hexadecimal digits: the key of the job, the same one at every call with this job's uid.
  std::string job_key;
  std::set<std::string> unreachable;  // clusters that do not answer: of them `objects` says nothing
  std::map<std::string, std::string> why_unreachable;  // of those whose reason is known, in words
};

}  // namespace longhaul::kube
