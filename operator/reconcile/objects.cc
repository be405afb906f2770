#include "operator/reconcile/objects.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "operator/reconcile/commands.h"
#include "operator/reconcile/pods.h"
#include "operator/resource/stamp.h"

namespace longhaul::kube {
namespace {

// Not root; one number for engine and ranks, since the engine's socket is its user's alone.
constexpr int kUser = 65532;
// Rounds in progress 2 s, the last checkpoint 20 s, the farewell 1.5 s (docs/howto/probes_and_metrics.md).
constexpr int kServerGraceSeconds = 30;
// A server that gets SIGTERM in mid-job says to its nodes that the job is over: each ends, as a failure.
// With SIGUSR2 it hands the job over, and ends: the nodes wait for its next pod, which has the round log. The
// SIGTERM that follows changes nothing then. (A hook that waited for the end would end with it, as failed.)
constexpr const char* kHandOver = "kill -USR2 1";
constexpr int kPlanMode = 0555;  // the script is executed
constexpr int kKeyMode = 0440;   // the volume's group is the pod's fsGroup
constexpr const char* kTemporary = "/tmp";

Json Labels(const TrainingJob& job) {
  return {{kJobLabel, job.name}, {kUidLabel, job.uid}, {"app.kubernetes.io/part-of", "longhaul"}};
}

Json Metadata(const TrainingJob& job, const std::string& name, const Owner& owner) {
  Json metadata = {{"name", name}, {"namespace", job.name_space}, {"labels", Labels(job)}};
  if (!owner.reference.is_null()) metadata["ownerReferences"] = Json::array({owner.reference});
  return metadata;
}

Json Object(const char* version, const char* kind, Json metadata) {
  return {{"apiVersion", version}, {"kind", kind}, {"metadata", std::move(metadata)}};
}

Json Reference(const char* version, const char* kind, const std::string& name, const std::string& uid) {
  return {{"apiVersion", version},     {"kind", kind}, {"name", name}, {"uid", uid}, {"controller", true},
          {"blockOwnerDeletion", true}};
}

// Sets what `defaults` has and `object` lacks, also inside objects that both have. Null is lacking, as it is
// for an API server.
void SetDefaults(Json* object, const Json& defaults) {
  if (!object->is_object()) *object = Json::object();
  for (const auto& [key, value] : defaults.items()) {
    Json& own = (*object)[key];
    if (own.is_null()) own = value;
    if (own.is_object() && value.is_object()) SetDefaults(&own, value);
  }
}

Json PodSecurity() {
  return {{"runAsNonRoot", true},
          {"runAsUser", kUser},
          {"runAsGroup", kUser},
          {"fsGroup", kUser},
          {"seccompProfile", {{"type", "RuntimeDefault"}}}};
}

Json ContainerSecurity() {
  return {{"allowPrivilegeEscalation", false},
          {"privileged", false},
          {"readOnlyRootFilesystem", true},
          {"capabilities", {{"drop", Json::array({"ALL"})}}}};
}

Json HttpProbe(const char* path, int port, int period, int failures) {
  return {{"httpGet", {{"path", path}, {"port", port}}},
          {"periodSeconds", period},
          {"timeoutSeconds", 2},
          {"failureThreshold", failures}};
}

Json Mount(const char* volume, const char* path, bool read_only) {
  Json mount = {{"name", volume}, {"mountPath", path}};
  if (read_only) mount["readOnly"] = true;
  return mount;
}

std::string ImageOf(const TrainingJob& job, const Settings& settings) {
  return settings.server_image.empty() ? job.spec.image : settings.server_image;
}

std::string KeySecretOf(const TrainingJob& job) {
  return job.spec.server.external ? job.spec.server.external->join_secret : KeyName(job);
}

// The key as the Secret has it, and in memory as longhaul wants it: readable by its user alone, which files
// of a Secret, root's with the group of the pod, are not. The operator makes its Secret and does not read it:
// here it is seen that another one has the name.
std::vector<std::string> CopyKey(const TrainingJob& job, const std::string& hex_key) {
  const std::string kept = "/etc/longhaul/secret/job.key";
  if (job.spec.server.external) return {"install", "-m", "0600", kept, kKeyPath};
  return {"/bin/sh", "-c",
          "install -m 0600 " + kept + " " + kKeyPath + " && echo '" + Sha256(KeyFile(job.name, hex_key)) +
              "  " + kKeyPath + "' | sha256sum -c - || exit " + std::to_string(kKeyIsAnothers)};
}

void AddKey(const TrainingJob& job, const Settings& settings, const std::string& hex_key, Json* pod) {
  Json& volumes = (*pod)["volumes"];
  if (!volumes.is_array()) volumes = Json::array();
  volumes.push_back({{"name", "longhaul-secret"},
                     {"secret",
                      {{"secretName", KeySecretOf(job)},
                       {"defaultMode", kKeyMode},
                       // The job's image copies it: of a Secret that the job names it gets no other entry.
                       {"items", Json::array({{{"key", "job.key"}, {"path", "job.key"}}})}}}});
  volumes.push_back({{"name", "longhaul-key"}, {"emptyDir", {{"medium", "Memory"}}}});
  Json& first = (*pod)["initContainers"];
  if (!first.is_array()) first = Json::array();
  const Json copy = {{"name", "key"},
                     {"image", ImageOf(job, settings)},
                     {"command", CopyKey(job, hex_key)},
                     {"securityContext", ContainerSecurity()},
                     {"volumeMounts", Json::array({Mount("longhaul-secret", "/etc/longhaul/secret", true),
                                                   Mount("longhaul-key", "/etc/longhaul/key", false)})}};
  first.insert(first.begin(), copy);
}

Json EngineContainer(const TrainingJob& job, const JobPlan& plan, const Settings& settings,
                     const WorkerPodParts& parts) {
  // Containers start one after the other: the ranks' when the hook has seen the engine's socket. Without it
  // within a minute the hook fails, and the pod with it.
  const std::string wait = std::string("i=0; until test -S ") + kSocketPath +
                           "; do i=$((i+1)); test $i -le 600 || exit 1; sleep 0.1; done";
  return {{"name", "engine"},
          {"image", ImageOf(job, settings)},
          {"command", EngineCommand(job, plan, parts.rank, parts.incarnation, parts.server_address)},
          {"ports", Json::array({{{"name", "metrics"}, {"containerPort", kEngineMetricsPort}}})},
          {"lifecycle", {{"postStart", {{"exec", {{"command", Json::array({"/bin/sh", "-c", wait})}}}}}}},
          {"readinessProbe", HttpProbe("/readyz", kEngineMetricsPort, 2, 3)},
          {"livenessProbe", HttpProbe("/healthz", kEngineMetricsPort, 10, 6)},
          {"securityContext", ContainerSecurity()},
          {"volumeMounts", Json::array({Mount("longhaul-run", "/run/longhaul", false),
                                        Mount("longhaul-key", "/etc/longhaul/key", true)})}};
}

Json TrainerContainer(const TrainingJob& job, const NodeConfig& config, const JobPlan& plan, size_t rank) {
  const int gpus = plan.nodes[rank].gpus;
  const Json& templates = At(config.node_template, {"spec", "containers"});
  Json container = templates.is_array() && !templates.empty() ? templates[0] : Json::object();
  std::vector<std::string> command;
  for (const char* key : {"command", "args"}) {
    if (!At(container, {key}).is_array()) continue;
    for (const Json& word : container[key])
      command.push_back(word.is_string() ? word.get<std::string>() : "");
  }
  container.erase("args");
  container["name"] = kTrainer;
  container["image"] = job.spec.image;
  container["command"] = TrainerCommand(gpus, plan.script, command);
  SetDefaults(&container["securityContext"], ContainerSecurity());
  if (!container["resources"].is_object()) container["resources"] = Json::object();
  for (const char* kind : {"limits", "requests"}) {
    Json& amounts = container["resources"][kind];
    if (!amounts.is_object()) amounts = Json::object();
    amounts[config.gpu_resource] = std::to_string(gpus);  // quantities are strings
  }
  Json& mounts = container["volumeMounts"];
  if (!mounts.is_array()) mounts = Json::array();
  mounts.push_back(Mount("longhaul-run", "/run/longhaul", false));
  mounts.push_back(Mount("longhaul-plan", "/longhaul/plan", true));
  // The one place to write to, beside the template's volumes.
  if (std::ranges::none_of(mounts,
                           [](const Json& mount) { return TextAt(mount, {"mountPath"}) == kTemporary; }))
    mounts.push_back(Mount("longhaul-tmp", kTemporary, false));
  if (!job.spec.data) return container;
  if (!job.spec.data->uri.empty()) {
    if (!At(container, {"env"}).is_array()) container["env"] = Json::array();
    container["env"].push_back({{"name", "LONGHAUL_DATA_URI"}, {"value", job.spec.data->uri}});
    return container;
  }
  Json mount = Mount("longhaul-data", kDataPath, true);
  if (!job.spec.data->sub_path.empty()) mount["subPath"] = job.spec.data->sub_path;
  mounts.push_back(std::move(mount));
  // Ready: the data is visible. The engine's own probe says the rest.
  container["readinessProbe"] = {
      {"exec", {{"command", {"/bin/sh", "-c", std::string("test -n \"$(ls -A ") + kDataPath + ")\""}}}},
      {"periodSeconds", 2},
      {"timeoutSeconds", 5}};
  return container;
}

}  // namespace

std::string PlanName(const TrainingJob& job) { return job.name + "-plan"; }
std::string ServerName(const TrainingJob& job) { return job.name + "-server"; }
std::string PublicName(const TrainingJob& job) { return job.name + "-public"; }
std::string NodesName(const TrainingJob& job) { return job.name + "-nodes"; }
std::string StorageName(const TrainingJob& job) { return job.name + "-checkpoints"; }
std::string KeyName(const TrainingJob& job) { return job.name + "-key"; }
std::string AnchorName(const TrainingJob& job) { return job.name + "-anchor"; }

Owner JobOwner(const TrainingJob& job) {
  return {"", Reference(kApiVersion.data(), "TrainingJob", job.name, job.uid)};
}

Owner AnchorOwner(const std::string& cluster, const Json& anchor) {
  Owner owner{cluster, Reference("v1", "ConfigMap", TextAt(anchor, {"metadata", "name"}),
                                 TextAt(anchor, {"metadata", "uid"}))};
  // Clusters that check it want the right to update configmaps/finalizers for it, which a site does not give.
  owner.reference.erase("blockOwnerDeletion");
  return owner;
}

Json Anchor(const TrainingJob& job) {
  Json anchor = Object("v1", "ConfigMap", Metadata(job, AnchorName(job), {}));
  anchor["data"] = {{"job", job.name_space + "/" + job.name}, {"uid", job.uid}};
  return anchor;
}

Json PlanMap(const TrainingJob& job, const JobPlan& plan, const Owner& owner) {
  Json map = Object("v1", "ConfigMap", Metadata(job, PlanName(job), owner));
  map["data"] = {{"nodes.json", NodesJson(plan)}, {"script", plan.script}, {"planHash", plan.hash}};
  map["immutable"] = true;  // a plan before the start is replaced as a whole
  return map;
}

Json KeySecret(const TrainingJob& job, const std::string& hex_key, const Owner& owner) {
  Json secret = Object("v1", "Secret", Metadata(job, KeyName(job), owner));
  secret["stringData"] = {{"job.key", KeyFile(job.name, hex_key)}};
  return secret;
}

Json StorageClaim(const TrainingJob& job) {
  Json claim = Object("v1", "PersistentVolumeClaim", Metadata(job, StorageName(job), JobOwner(job)));
  claim["spec"] = {{"accessModes", Json::array({"ReadWriteOnce"})},
                   {"resources", {{"requests", {{"storage", job.spec.server.storage->size}}}}}};
  if (!job.spec.server.storage->storage_class.empty()) {
    claim["spec"]["storageClassName"] = job.spec.server.storage->storage_class;
  }
  return claim;
}

namespace {

Json ServicePorts(const TrainingJob& job) {
  return Json::array({{{"name", "longhaul"},
                       {"protocol", "UDP"},
                       {"port", job.spec.server.port},
                       {"targetPort", job.spec.server.port}}});
}

Json SelectorOf(const TrainingJob& job, const char* role) {
  return {{kJobLabel, job.name}, {kUidLabel, job.uid}, {kRoleLabel, role}};
}

}  // namespace

Json ServerService(const TrainingJob& job) {
  Json service = Object("v1", "Service", Metadata(job, ServerName(job), JobOwner(job)));
  service["spec"] = {{"clusterIP", "None"},
                     {"publishNotReadyAddresses", true},
                     {"selector", SelectorOf(job, "server")},
                     {"ports", ServicePorts(job)}};
  return service;
}

Json PublicService(const TrainingJob& job) {
  Json service = Object("v1", "Service", Metadata(job, PublicName(job), JobOwner(job)));
  service["spec"] = {{"type", NameOf(job.spec.server.expose)},
                     {"externalTrafficPolicy", "Local"},
                     {"selector", SelectorOf(job, "server")},
                     {"ports", ServicePorts(job)}};
  return service;
}

Json NodesService(const TrainingJob& job, const Owner& owner) {
  Json service = Object("v1", "Service", Metadata(job, NodesName(job), owner));
  service["spec"] = {{"clusterIP", "None"},
                     {"publishNotReadyAddresses", true},
                     {"selector", SelectorOf(job, "worker")},
                     {"ports", Json::array({{{"name", "metrics"}, {"port", kEngineMetricsPort}}})}};
  return service;
}

Json ServerSet(const TrainingJob& job, const NodeConfig& config, const JobPlan& plan,
               const Settings& settings, const ServerParts& parts, const std::string& hex_key) {
  Json labels = Labels(job);
  labels[kRoleLabel] = "server";
  labels[kPlanLabel] = plan.hash;
  Json pod = {{"automountServiceAccountToken", false},
              {"terminationGracePeriodSeconds", kServerGraceSeconds},
              {"securityContext", PodSecurity()}};
  if (const Json& secrets = At(config.node_template, {"spec", "imagePullSecrets"}); secrets.is_array()) {
    pod["imagePullSecrets"] = secrets;
  }
  if (job.spec.server.expose == Expose::kHostNetwork) {
    pod["hostNetwork"] = true;
    pod["dnsPolicy"] = "ClusterFirstWithHostNet";
  }
  Json startup = HttpProbe("/readyz", kServerMetricsPort, 2, 300);  // reading a checkpoint may take a while
  pod["containers"] = Json::array(
      {{{"name", "server"},
        {"image", ImageOf(job, settings)},
        {"command", ServerCommand(job, plan, parts)},
        {"ports",
         Json::array({{{"name", "longhaul"}, {"protocol", "UDP"}, {"containerPort", job.spec.server.port}},
                      {{"name", "metrics"}, {"containerPort", kServerMetricsPort}}})},
        {"startupProbe", std::move(startup)},
        {"livenessProbe", HttpProbe("/healthz", kServerMetricsPort, 10, 6)},
        {"readinessProbe", HttpProbe("/readyz", kServerMetricsPort, 2, 3)},
        {"securityContext", ContainerSecurity()},
        {"volumeMounts", Json::array({Mount("longhaul-checkpoints", kCheckpointMount, false),
                                      Mount("longhaul-key", "/etc/longhaul/key", true)})}}});
  Json storage = {{"name", "longhaul-checkpoints"}};
  if (job.spec.server.storage) {
    storage["persistentVolumeClaim"] = {{"claimName", StorageName(job)}};
    pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] = {"/bin/sh", "-c", kHandOver};
  } else {
    storage["emptyDir"] = Json::object();
  }
  pod["volumes"] = Json::array({std::move(storage)});
  AddKey(job, settings, hex_key, &pod);
  Json set = Object("apps/v1", "StatefulSet", Metadata(job, ServerName(job), JobOwner(job)));
  set["metadata"]["labels"][kPlanLabel] = plan.hash;
  set["metadata"]["labels"][kIncarnationLabel] = std::to_string(parts.attempt);
  set["metadata"]["labels"][kStartLabel] = std::to_string(parts.start_workers);
  set["spec"] = {{"replicas", 1},
                 {"serviceName", ServerName(job)},
                 {"selector", {{"matchLabels", SelectorOf(job, "server")}}},
                 {"template", {{"metadata", {{"labels", std::move(labels)}}}, {"spec", std::move(pod)}}}};
  return set;
}

Json WorkerPod(const TrainingJob& job, const NodeConfig& config, const JobPlan& plan,
               const Settings& settings, const WorkerPodParts& parts, const Owner& owner) {
  const PlannedNode& node = plan.nodes[parts.rank];
  Json pod = Object("v1", "Pod", Metadata(job, node.name, owner));
  for (const char* map : {"labels", "annotations"}) {
    const Json& given = At(config.node_template, {"metadata", map});
    if (given.is_object()) SetDefaults(&pod["metadata"][map], given);
  }
  Json& labels = pod["metadata"]["labels"];
  labels[kRoleLabel] = "worker";
  labels[kRankLabel] = std::to_string(parts.rank);
  labels[kIncarnationLabel] = std::to_string(parts.incarnation);
  labels[kPlanLabel] = plan.hash;
  labels[kServerLabel] = Fingerprint(parts.server_address);
  if (!node.site.empty()) labels[kSiteLabel] = node.site;

  const Json& given = At(config.node_template, {"spec"});
  Json spec = given.is_object() ? given : Json::object();
  spec["restartPolicy"] = "Never";
  spec["automountServiceAccountToken"] = false;
  spec["shareProcessNamespace"] = true;  // the engine sees by its rank's process when that dies
  spec["hostname"] = node.name;
  spec["subdomain"] = NodesName(job);
  SetDefaults(&spec["securityContext"], PodSecurity());
  for (const Site& site : job.spec.sites) {
    if (site.name != node.site || site.node_selector.empty()) continue;
    if (!spec["nodeSelector"].is_object()) spec["nodeSelector"] = Json::object();
    for (const auto& [key, value] : site.node_selector) spec["nodeSelector"][key] = value;
  }
  spec["containers"] = Json::array(
      {EngineContainer(job, plan, settings, parts), TrainerContainer(job, config, plan, parts.rank)});
  Json& volumes = spec["volumes"];
  if (!volumes.is_array()) volumes = Json::array();
  volumes.push_back({{"name", "longhaul-run"}, {"emptyDir", Json::object()}});
  volumes.push_back({{"name", "longhaul-tmp"}, {"emptyDir", Json::object()}});
  volumes.push_back(
      {{"name", "longhaul-plan"}, {"configMap", {{"name", PlanName(job)}, {"defaultMode", kPlanMode}}}});
  if (job.spec.data && !job.spec.data->claim.empty()) {
    volumes.push_back({{"name", "longhaul-data"},
                       {"persistentVolumeClaim", {{"claimName", job.spec.data->claim}, {"readOnly", true}}}});
  }
  AddKey(job, settings, parts.hex_key, &spec);
  pod["spec"] = std::move(spec);
  return pod;
}

std::vector<std::string> ServerAddresses(const TrainingJob& job, bool remote, const Json& public_service,
                                         const Json& server_pod) {
  const ServerSpec& server = job.spec.server;
  if (server.external) return {server.external->host + ":" + std::to_string(server.external->port)};
  const std::string port = std::to_string(server.port);
  if (!remote) return {ServerName(job) + "." + job.name_space + ".svc:" + port};
  std::vector<std::string> addresses;
  const std::string host = TextAt(server_pod, {"status", "hostIP"});
  switch (server.expose) {
    case Expose::kHeadless:
      break;
    case Expose::kHostNetwork:
      if (!host.empty()) addresses.push_back(host + ":" + port);
      break;
    case Expose::kNodePort: {
      const Json& ports = At(public_service, {"spec", "ports"});
      const int64_t node_port = ports.is_array() && !ports.empty() ? NumberAt(ports[0], {"nodePort"}, 0) : 0;
      // externalTrafficPolicy Local: only the machine that has the server's pod takes the datagrams.
      if (!host.empty() && node_port > 0) addresses.push_back(host + ":" + std::to_string(node_port));
      break;
    }
    case Expose::kLoadBalancer: {
      const Json& ingress = At(public_service, {"status", "loadBalancer", "ingress"});
      if (!ingress.is_array()) break;
      for (const Json& one : ingress) {
        const std::string ip = TextAt(one, {"ip"});
        const std::string name = ip.empty() ? TextAt(one, {"hostname"}) : ip;
        if (!name.empty()) addresses.push_back(name + ":" + port);
      }
      break;
    }
  }
  return addresses;
}

}  // namespace longhaul::kube
