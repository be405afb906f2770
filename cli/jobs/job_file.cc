#include "cli/jobs/job_file.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <exception>
#include <optional>
#include <utility>

#include "operator/api/core/api_result.h"
#include "operator/resource/training_job.h"
#include "proto/utf8.h"

namespace longhaul::cli {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = 100'000;  // aliases make many of a short text
constexpr size_t kShownBytes = 200;

Status Invalid(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

std::string LineOf(const YAML::Node& node) {
  return node.Mark().is_null() ? std::string() : "line " + std::to_string(node.Mark().line + 1) + ": ";
}

template <typename T>
std::optional<T> Number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// By YAML's core schema: quoted text is text; else null, booleans and numbers are what they look like.
json Scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  const std::string_view digits = std::string_view(text).substr(text[0] == '-' || text[0] == '+' ? 1 : 0);
  if (digits.empty() || (digits[0] != '.' && (digits[0] < '0' || digits[0] > '9'))) return text;  // inf, nan
  if (const auto whole = Number<int64_t>(text)) return *whole;
  if (const auto real = Number<double>(text)) return *real;
  return text;
}

// Throws what yaml-cpp throws.
class Converter {
 public:
  Status Convert(const YAML::Node& node, int depth, json* out) {
    if (depth > kMaxDepth) return Invalid(LineOf(node) + "nested deeper than 64 levels");
    if (++values_ > kMaxValues) return Invalid("more than 100000 values");
    if (node.IsMap()) return ConvertMap(node, depth, out);
    if (node.IsScalar()) {
      *out = Scalar(node);
    } else if (node.IsSequence()) {
      *out = json::array();
      for (const auto& each : node) {
        if (Status done = Convert(each, depth + 1, &out->emplace_back()); !done.ok()) return done;
      }
    } else {
      *out = nullptr;
    }
    return {};
  }

 private:
  Status ConvertMap(const YAML::Node& node, int depth, json* out) {
    *out = json::object();
    for (const auto& each : node) {
      if (!each.first.IsScalar()) return Invalid(LineOf(node) + "a field's name is no text");
      const std::string& name = each.first.Scalar();
      if (out->contains(name))
        return Invalid(LineOf(each.first) + wire::Printable(name, kShownBytes) +
                       " is there twice: leave one out");
      if (Status done = Convert(each.second, depth + 1, &(*out)[name]); !done.ok()) return done;
    }
    return {};
  }

  size_t values_ = 0;
};

Result<json> FromYaml(std::string_view text) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() != 1) {
      return Invalid("there are " + std::to_string(documents.size()) +
                     " documents, and one job is expected: submit each by itself");
    }
    json job;
    if (Status done = Converter().Convert(documents[0], 1, &job); !done.ok()) return done;
    return job;
  } catch (const std::exception& error) {
    return Invalid("no YAML: " + wire::Printable(error.what(), kShownBytes));
  }
}

}  // namespace

Result<json> ReadJobText(std::string_view text) {
  if (text.size() > kMaxJobFileBytes)
    return Invalid("the file is larger than " + std::to_string(kMaxJobFileBytes) + " bytes");
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return Invalid("the file is empty");
  json job;
  if (text[first] == '{') {
    auto parsed = kube::api::ParseJson(text);
    if (!parsed) return Invalid("no JSON, though it begins with a brace");
    job = std::move(*parsed);
  } else {
    auto read = FromYaml(text);
    if (!read.ok()) return read.status();
    job = std::move(*read);
  }
  if (!job.is_object()) return Invalid("no object: a TrainingJob has apiVersion, kind, metadata and spec");
  const std::string_view kind = kube::api::TextAt(job, {"kind"});
  const std::string_view version = kube::api::TextAt(job, {"apiVersion"});
  if (kind == "TrainingJob" && version == kube::kApiVersion) return job;
  return Invalid(
      "kind " + wire::Printable(kind, kShownBytes) + " of " + wire::Printable(version, kShownBytes) +
      " is not submitted: write kind: TrainingJob and apiVersion: " + std::string(kube::kApiVersion));
}

json MakeJob(const JobFlags& flags) {
  json job = {{"apiVersion", kube::kApiVersion},
              {"kind", "TrainingJob"},
              {"metadata", {{"name", flags.name}}},
              {"spec",
               {{"profileRef", {{"name", flags.profile}}},
                {"totalGPUs", flags.gpus},
                {"image", flags.image},
                {"script", {{"inline", flags.script}}}}}};
  if (!flags.claim.empty()) job["spec"]["data"] = {{"claimName", flags.claim}};
  return job;
}

Status PrepareJob(const std::string& name_space, const std::string& usual, json* job) {
  json& metadata = (*job)["metadata"];
  if (!metadata.is_object()) return Invalid("metadata: is missing: it has the job's name");
  const std::string own(kube::api::TextAt(metadata, {"namespace"}));
  if (!own.empty() && !name_space.empty() && own != name_space) {
    return Invalid("metadata.namespace: is " + wire::Printable(own, kShownBytes) + ", and --namespace " +
                   name_space + ": leave one of them out");
  }
  metadata["namespace"] = !own.empty() ? own : !name_space.empty() ? name_space : usual;
  return kube::CheckCreate(*job);
}

}  // namespace longhaul::cli
