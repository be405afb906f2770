#include "operator/resource/training_job.h"

#include <algorithm>
#include <set>
#include <utility>

#include "operator/resource/timestamps.h"

namespace longhaul::kube {
namespace {

constexpr size_t kMostSites = 32;
constexpr int64_t kMostStartSeconds = 30 * 86400;
constexpr int64_t kMostSeconds = 365 * 86400;

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// A whole or decimal number and a unit, more than zero: "10Gi".
bool IsQuantity(std::string_view text) {
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, end);
  const std::string_view unit = end == std::string_view::npos ? "" : text.substr(end);
  constexpr std::array<std::string_view, 11> kUnits = {"",   "k",  "M",  "G",  "T", "P",
                                                       "Ki", "Mi", "Gi", "Ti", "Pi"};
  return number.find_first_of("123456789") != std::string_view::npos && number.front() != '.' &&
         number.back() != '.' && std::count(number.begin(), number.end(), '.') <= 1 && text.size() <= 20 &&
         std::find(kUnits.begin(), kUnits.end(), unit) != kUnits.end();
}

bool IsRelativePath(std::string_view path) {
  if (path.front() == '/' || path.size() > 1024) return false;
  while (true) {
    const size_t slash = path.find('/');
    if (path.substr(0, slash) == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool IsUri(std::string_view text) {
  const size_t colon = text.find("://");
  return colon != std::string_view::npos && colon > 0 && colon + 3 < text.size() && text.size() <= 2048 &&
         IsPrintable(text);
}

bool IsHost(std::string_view text) {
  return text.size() <= 253 && text.find_first_not_of(
                                   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789.:-") == std::string_view::npos;
}

bool IsImage(std::string_view text) {
  return text.size() <= 1024 && text.front() != '-' && IsPrintable(text);
}

constexpr std::string_view kObjectName = "the name of an object: a-z, 0-9, - and .";

std::string ReadReference(Fields& spec, std::string_view key) {
  if (!spec.Has(key)) return {};
  Fields reference = spec.Object(key);
  std::string name = reference.TextLike("name", IsSubdomain, kObjectName);
  if (name.empty()) reference.Fail("name", "is missing");
  reference.NoOthers();
  return name;
}

void ExactlyOne(Fields& fields, std::string_view a, std::string_view b) {
  const std::string both = std::string(a) + " and " + std::string(b);
  if (fields.Has(a) && fields.Has(b)) fields.Fail(b, both + " exclude each other: leave one of them out");
  if (!fields.Has(a) && !fields.Has(b)) fields.Fail(a, "is missing: give one of " + both);
}

Script ReadScript(Fields fields) {
  Script script;
  ExactlyOne(fields, "inline", "configMapRef");
  if (fields.Has("inline")) script.text = fields.Text("inline", kMostScriptBytes);
  if (fields.Has("configMapRef")) {
    Fields reference = fields.Object("configMapRef");
    script.config_map = reference.TextLike("name", IsSubdomain, kObjectName);
    script.key = reference.Text("key", 253);
    if (script.config_map.empty()) reference.Fail("name", "is missing");
    if (script.key.empty()) reference.Fail("key", "is missing: which entry of the ConfigMap is the script?");
    reference.NoOthers();
  }
  fields.NoOthers();
  return script;
}

TrainingData ReadData(Fields fields) {
  TrainingData data;
  ExactlyOne(fields, "claimName", "uri");
  data.claim = fields.TextLike("claimName", IsSubdomain, kObjectName);
  data.sub_path = fields.TextLike("subPath", IsRelativePath, "a path below the volume: relative, without ..");
  data.uri = fields.TextLike("uri", IsUri, "a URI, such as s3://bucket/prefix, of at most 2048 characters");
  if (!data.sub_path.empty() && data.claim.empty()) fields.Fail("subPath", "needs claimName");
  fields.NoOthers();
  return data;
}

ServerSpec ReadServer(Fields fields) {
  ServerSpec server;
  server.port = static_cast<uint16_t>(fields.Number("port", 1, 65535, kServerPort));
  server.expose = fields.OneOf("expose", Expose::kHeadless);
  if (fields.Has("storage")) {
    Fields storage = fields.Object("storage");
    server.storage.emplace();
    server.storage->size = storage.TextLike("size", IsQuantity, "an amount of storage, such as 10Gi");
    if (server.storage->size.empty()) storage.Fail("size", "is missing");
    server.storage->storage_class = storage.TextLike("storageClassName", IsSubdomain, kObjectName);
    storage.NoOthers();
  }
  if (fields.Has("external")) {
    Fields external = fields.Object("external");
    server.external.emplace();
    server.external->host = external.TextLike("host", IsHost, "a name or an address of a host");
    if (server.external->host.empty()) external.Fail("host", "is missing");
    server.external->port = static_cast<uint16_t>(external.Number("port", 1, 65535, std::nullopt));
    server.external->join_secret = external.TextLike("joinSecret", IsSubdomain, kObjectName);
    if (server.external->join_secret.empty())
      external.Fail("joinSecret", "is missing: the Secret with the server's job.key");
    if (server.external->join_secret.ends_with("-key"))
      external.Fail("joinSecret",
                    "ends in -key, as the operator's own Secrets do, which are other jobs' keys: give the "
                    "Secret another name");
    external.NoOthers();
  }
  fields.NoOthers();
  return server;
}

std::map<std::string, std::string> ReadSelector(Fields& site) {
  std::map<std::string, std::string> selector;
  if (!site.Object("nodeSelector").present()) return selector;
  for (const auto& [key, value] : site.Any("nodeSelector").items()) {
    if (!value.is_string() || key.size() > 317 || value.get_ref<const std::string&>().size() > 63) {
      site.Fail("nodeSelector", "\"" + key.substr(0, 80) + "\" is no label of a node: give strings");
      continue;
    }
    selector[key] = value.get<std::string>();
  }
  return selector;
}

std::vector<Site> ReadSites(Fields& spec) {
  std::vector<Site> sites;
  const Json* list = spec.Array("sites", kMostSites);
  if (list == nullptr) return sites;
  std::set<std::string> names;
  Status problem;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string at = spec.PathOf("sites") + "[" + std::to_string(i) + "]";
    Fields fields((*list)[i], at, &problem);
    Site site;
    site.name = fields.TextLike("name", IsLabel, "a label: a-z, 0-9 and -, at most 63 characters");
    if (site.name.empty()) fields.Fail("name", "is missing");
    if (!names.insert(site.name).second) fields.Fail("name", "\"" + site.name + "\" is there twice");
    site.gpus = static_cast<int>(fields.Number("gpus", kLeastGpusOfNode, kMostGpus, std::nullopt));
    site.kubeconfig_secret = fields.TextLike("kubeconfigSecret", IsSubdomain, kObjectName);
    site.node_selector = ReadSelector(fields);
    fields.NoOthers();
    sites.push_back(std::move(site));
  }
  // The message has the whole path already.
  if (!problem.ok()) spec.FailAs(problem);
  return sites;
}

RunPolicy ReadRunPolicy(Fields fields) {
  RunPolicy policy;
  const auto seconds = [&](std::string_view key, int64_t low, int64_t high) -> std::optional<Duration> {
    const auto value = fields.OptionalNumber(key, low, high);
    if (!value) return std::nullopt;
    return std::chrono::seconds(*value);
  };
  policy.suspend = fields.Boolean("suspend", false);
  policy.start_deadline = seconds("startDeadlineSeconds", 1, kMostStartSeconds);
  policy.active_deadline = seconds("activeDeadlineSeconds", 1, kMostSeconds);
  policy.ttl_after_finished = seconds("ttlSecondsAfterFinished", 0, kMostSeconds);
  fields.NoOthers();
  return policy;
}

// What one field says about another.
void CheckTogether(const TrainingJobSpec& spec, Fields& fields) {
  if (!spec.sites.empty()) {
    int sum = 0;
    bool remote = false;
    for (const Site& site : spec.sites) {
      sum += site.gpus;
      remote |= !site.kubeconfig_secret.empty();
    }
    if (sum < spec.total_gpus) {
      fields.Fail("sites", "have " + std::to_string(sum) + " GPUs together, fewer than totalGPUs, " +
                               std::to_string(spec.total_gpus) +
                               ": raise gpus of a site, or lower totalGPUs");
    }
    if (remote && spec.server.expose == Expose::kHeadless && !spec.server.external) {
      fields.Fail("server.expose",
                  "is Headless, which pods of another cluster cannot reach: choose NodePort, "
                  "LoadBalancer or HostNetwork, or name a server.external");
    }
  }
}

TrainingJobSpec ReadSpec(const Json& object, Status* status, Status* bad_template) {
  TrainingJobSpec spec;
  Fields fields(object, "spec", status);
  if (!fields.present()) {
    if (status->ok()) *status = {StatusCode::kInvalidArgument, "spec: is missing"};
    return spec;
  }
  ExactlyOne(fields, "profileRef", "node");
  spec.profile = ReadReference(fields, "profileRef");
  if (fields.Has("node"))
    spec.node = ReadNodeConfig(fields.Object("node"), TemplateOrigin::kJob, bad_template);
  spec.total_gpus = static_cast<int>(fields.Number("totalGPUs", 1, kMostGpus, std::nullopt));
  spec.image = fields.TextLike("image", IsImage, "the name of an image, of at most 1024 characters");
  if (spec.image.empty()) fields.Fail("image", "is missing: an image with your program and longhaul in it");
  if (!fields.Has("script")) fields.Fail("script", "is missing: give it inline or by a configMapRef");
  if (fields.Has("script")) spec.script = ReadScript(fields.Object("script"));
  if (fields.Has("data")) spec.data = ReadData(fields.Object("data"));
  Fields allocation = fields.Object("allocation");
  spec.strategy = allocation.OneOf("strategy", Strategy::kPacked);
  spec.capacity = allocation.OneOf("capacity", Capacity::kDeclared);
  allocation.NoOthers();
  spec.server = ReadServer(fields.Object("server"));
  spec.sites = ReadSites(fields);
  Fields elastic = fields.Object("elastic");
  if (const auto least = elastic.OptionalNumber("minNodes", 1, 1024))
    spec.min_nodes = static_cast<int>(*least);
  elastic.NoOthers();
  spec.run_policy = ReadRunPolicy(fields.Object("runPolicy"));
  CheckTogether(spec, fields);
  fields.NoOthers();
  return spec;
}

Status CheckName(const std::string& name) {
  if (IsLabel(name) && name.size() <= kMostNameBytes && (name[0] < '0' || name[0] > '9')) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "metadata.name: \"" + name.substr(0, 80) +
              "\" is no name of a job: a-z, 0-9 and -, a letter first, at most " +
              std::to_string(kMostNameBytes) +
              " characters, since pods and services have longer names made of it"};
}

// The parts of a spec that may change.
Json WithoutMutable(const Json& object) {
  Json spec = At(object, {"spec"});
  if (!spec.is_object()) return spec;
  spec.erase("runPolicy");
  if (At(spec, {"elastic"}).is_object()) {
    spec["elastic"].erase("minNodes");
    if (spec["elastic"].empty()) spec.erase("elastic");
  }
  return spec;
}

// Of two values that differ, the path of the first difference, two levels down at most.
std::string FirstDifference(const Json& a, const Json& b, const std::string& path, int levels) {
  if (!a.is_object() || !b.is_object() || levels == 0) return path;
  std::set<std::string> keys;
  for (const Json* object : {&a, &b}) {
    for (const auto& [key, value] : object->items()) keys.insert(key);
  }
  for (const auto& key : keys) {
    const Json &left = At(a, {key}), &right = At(b, {key});
    if (left != right) return FirstDifference(left, right, path + "." + key, levels - 1);
  }
  return path;
}

}  // namespace

Result<TrainingJob> ParseTrainingJob(const Json& object) {
  TrainingJob job;
  const Json& metadata = At(object, {"metadata"});
  job.name = TextAt(metadata, {"name"});
  job.name_space = TextAt(metadata, {"namespace"});
  job.uid = TextAt(metadata, {"uid"});
  const auto created = ParseTimestamp(TextAt(metadata, {"creationTimestamp"}));
  if (job.name.empty() || job.name_space.empty() || job.uid.empty() || !created) {
    return Status(StatusCode::kInvalidArgument,
                  "metadata: lacks name, namespace, uid or creationTimestamp: no object of an API server");
  }
  job.created = *created;
  job.resource_version = TextAt(metadata, {"resourceVersion"});
  job.generation = NumberAt(metadata, {"generation"}, 0);
  job.requester = TextAt(metadata, {"annotations", kRequesterAnnotation});
  job.requester_identity = TextAt(metadata, {"annotations", kIdentityAnnotation});
  if (!At(metadata, {"deletionTimestamp"}).is_null()) {
    job.deleted = ParseTimestamp(TextAt(metadata, {"deletionTimestamp"})).value_or(job.created);
  }
  const Json& finalizers = At(metadata, {"finalizers"});
  job.has_finalizer =
      finalizers.is_array() && std::any_of(finalizers.begin(), finalizers.end(), [](const Json& f) {
        return f.is_string() && f.get_ref<const std::string&>() == kFinalizer;
      });
  job.spec_status = CheckName(job.name);
  if (DeeperThan(object, kMaxDepth)) {
    job.spec_status = {StatusCode::kInvalidArgument,
                       "the object is nested deeper than " + std::to_string(kMaxDepth) + " levels"};
    return job;
  }
  if (job.spec_status.ok()) job.spec = ReadSpec(At(object, {"spec"}), &job.spec_status, &job.bad_template);
  job.status = ParseJobStatus(At(object, {"status"}));
  return job;
}

Status CheckCreate(const Json& object) {
  if (DeeperThan(object, kMaxDepth)) {
    return {StatusCode::kInvalidArgument,
            "the object is nested deeper than " + std::to_string(kMaxDepth) + " levels"};
  }
  // An admission review has the object before it has a uid.
  if (Status name = CheckName(TextAt(object, {"metadata", "name"})); !name.ok()) return name;
  Status status, bad_template;
  (void)ReadSpec(At(object, {"spec"}), &status, &bad_template);
  return status.ok() ? bad_template : status;
}

Status CheckUpdate(const Json& old_object, const Json& new_object) {
  if (Status right = CheckCreate(new_object); !right.ok()) return right;
  if (DeeperThan(old_object, kMaxDepth))
    return {StatusCode::kInvalidArgument, "the old object is nested too deep"};
  const Json before = WithoutMutable(old_object), after = WithoutMutable(new_object);
  if (before == after) return Status::Ok();
  return {StatusCode::kFailedPrecondition, FirstDifference(before, after, "spec", 2) +
                                               ": cannot change once the job is there, only spec.runPolicy "
                                               "and spec.elastic.minNodes can: delete the "
                                               "job, or give the new one another name"};
}

}  // namespace longhaul::kube
