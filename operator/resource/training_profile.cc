#include "operator/resource/training_profile.h"

namespace longhaul::kube {
namespace {

// An extended resource: a domain, a slash, a name.
bool IsResource(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !IsSubdomain(text.substr(0, slash))) return false;
  const std::string_view name = text.substr(slash + 1);
  if (name.empty() || name.size() > 63) return false;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

}  // namespace

NodeConfig ReadNodeConfig(Fields fields, TemplateOrigin origin, Status* bad_template) {
  NodeConfig config;
  const std::string resource =
      fields.TextLike("gpuResource", IsResource, "the name of an extended resource, such as nvidia.com/gpu");
  if (!resource.empty()) config.gpu_resource = resource;
  config.max_gpus =
      static_cast<int>(fields.Number("maxGPUs", kLeastGpusOfNode, kMostGpusOfNode, std::nullopt));
  config.min_gpus =
      static_cast<int>(fields.Number("minGPUs", kLeastGpusOfNode, kMostGpusOfNode, kLeastGpusOfNode));
  if (config.min_gpus > config.max_gpus) {
    fields.Fail("minGPUs", "is " + std::to_string(config.min_gpus) + ", more than maxGPUs, " +
                               std::to_string(config.max_gpus) + ": lower it, or raise maxGPUs");
  }
  config.max_retries = static_cast<int>(fields.Number("maxRetries", 0, 1000, config.max_retries));
  config.clean_policy = fields.OneOf("cleanPolicy", CleanPolicy::kAll);
  const Json& pod_template = fields.Any("nodeTemplate");
  *bad_template = CheckTemplate(pod_template, origin, fields.PathOf("nodeTemplate"));
  if (bad_template->ok()) config.node_template = pod_template;
  fields.NoOthers();
  return config;
}

Result<TrainingProfile> ParseTrainingProfile(const Json& object) {
  TrainingProfile profile;
  profile.name = TextAt(object, {"metadata", "name"});
  Status status, bad_template;
  const Fields spec(At(object, {"spec"}), "spec", &status);
  if (!spec.present() && status.ok()) status = {StatusCode::kInvalidArgument, "spec: is missing"};
  profile.config = ReadNodeConfig(spec, TemplateOrigin::kProfile, &bad_template);
  if (status.ok() && !IsSubdomain(profile.name)) {
    status = {StatusCode::kInvalidArgument, "metadata.name: is no name of an object"};
  }
  if (!status.ok()) return status;
  if (!bad_template.ok()) return bad_template;
  return profile;
}

}  // namespace longhaul::kube
