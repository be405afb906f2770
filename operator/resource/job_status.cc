#include "operator/resource/job_status.h"

#include <algorithm>

#include "longhaul/job.h"
#include "operator/resource/timestamps.h"

namespace longhaul::kube {
namespace {

constexpr size_t kMostNodes = 4096;
constexpr size_t kMostConditions = 64;
constexpr int64_t kMostCount = 1'000'000;  // of retries and disruptions: sums of them stay numbers

template <typename E>
E NameAt(const Json& object, std::string_view key, E otherwise) {
  return FromName<E>(TextAt(object, {key})).value_or(otherwise);
}

int CountAt(const Json& object, std::string_view key) {
  return static_cast<int>(std::clamp<int64_t>(NumberAt(object, {key}, 0), 0, kMostCount));
}

NodeStatus ParseNode(const Json& node) {
  NodeStatus status;
  status.name = TextAt(node, {"name"});
  status.site = TextAt(node, {"site"});
  status.gpus = CountAt(node, "gpus");
  status.phase = NameAt(node, "phase", NodePhase::kPending);
  status.pod_ip = TextAt(node, {"podIP"});
  status.retries = CountAt(node, "retries");
  status.disruptions = CountAt(node, "disruptions");
  status.joined = At(node, {"joined"}) == true;
  if (At(node, {"lastExitCode"}).is_number_integer())
    status.last_exit_code = NumberAt(node, {"lastExitCode"}, 0);
  status.retry_at = ParseTimestamp(TextAt(node, {"retryAt"}));
  return status;
}

Json NodeJson(const NodeStatus& node) {
  Json json = {{"name", node.name},
               {"gpus", node.gpus},
               {"phase", NameOf(node.phase)},
               {"retries", node.retries},
               {"disruptions", node.disruptions}};
  if (!node.site.empty()) json["site"] = node.site;
  if (!node.pod_ip.empty()) json["podIP"] = node.pod_ip;
  if (node.joined) json["joined"] = true;
  if (node.last_exit_code) json["lastExitCode"] = *node.last_exit_code;
  if (node.retry_at) json["retryAt"] = TimestampText(*node.retry_at);
  return json;
}

}  // namespace

const Condition* JobStatus::Find(std::string_view type) const {
  const auto found =
      std::find_if(conditions.begin(), conditions.end(), [&](const Condition& c) { return c.type == type; });
  return found == conditions.end() ? nullptr : &*found;
}

bool JobStatus::IsTrue(std::string_view type) const { return TrueSince(type).has_value(); }

std::optional<Instant> JobStatus::TrueSince(std::string_view type) const {
  const Condition* found = Find(type);
  if (found == nullptr || found->status != ConditionStatus::kTrue) return std::nullopt;
  return found->since;
}

bool JobStatus::Set(std::string_view type, ConditionStatus value, std::string_view why, std::string text,
                    Instant now) {
  const Condition* known = Find(type);
  Condition next{std::string(type), value, std::string(why), std::move(text), now};
  if (known != nullptr && known->status == value) next.since = known->since;
  if (known != nullptr && *known == next) return false;
  if (known == nullptr) {
    conditions.push_back(std::move(next));
  } else {
    conditions[static_cast<size_t>(known - conditions.data())] = std::move(next);
  }
  return true;
}

JobStatus ParseJobStatus(const Json& status) {
  JobStatus parsed;
  parsed.phase = NameAt(status, "phase", Phase::kPending);
  parsed.reason = TextAt(status, {"reason"});
  parsed.message = TextAt(status, {"message"});
  parsed.requester = TextAt(status, {"requester"});
  parsed.plan_hash = TextAt(status, {"planHash"});
  parsed.attempt = std::clamp<int64_t>(NumberAt(status, {"attempt"}, 0), 0, int64_t{1} << 40);
  parsed.observed_generation = NumberAt(status, {"observedGeneration"}, 0);
  parsed.ready_nodes = TextAt(status, {"readyNodes"});
  parsed.start_time = ParseTimestamp(TextAt(status, {"startTime"}));
  parsed.completion_time = ParseTimestamp(TextAt(status, {"completionTime"}));
  const Json& nodes = At(status, {"nodes"});
  if (nodes.is_array() && nodes.size() <= kMostNodes) {
    for (const Json& node : nodes) parsed.nodes.push_back(ParseNode(node));
  }
  if (At(status, {"progress", "round"}).is_number_integer())
    parsed.round = NumberAt(status, {"progress", "round"}, 0);
  const Json& conditions = At(status, {"conditions"});
  if (conditions.is_array() && conditions.size() <= kMostConditions) {
    for (const Json& c : conditions) {
      const auto since = ParseTimestamp(TextAt(c, {"lastTransitionTime"}));
      if (!since || TextAt(c, {"type"}).empty() || parsed.Find(TextAt(c, {"type"})) != nullptr) continue;
      parsed.conditions.push_back({TextAt(c, {"type"}), NameAt(c, "status", ConditionStatus::kUnknown),
                                   TextAt(c, {"reason"}), TextAt(c, {"message"}), *since});
    }
  }
  return parsed;
}

Json JobStatusJson(const JobStatus& status) {
  Json json = {{"phase", NameOf(status.phase)},
               {"attempt", status.attempt},
               {"observedGeneration", status.observed_generation}};
  const std::pair<const char*, const std::string&> texts[] = {{"reason", status.reason},
                                                              {"message", status.message},
                                                              {"requester", status.requester},
                                                              {"planHash", status.plan_hash},
                                                              {"readyNodes", status.ready_nodes}};
  for (const auto& [key, text] : texts) {
    if (!text.empty()) json[key] = text;
  }
  if (status.start_time) json["startTime"] = TimestampText(*status.start_time);
  if (status.completion_time) json["completionTime"] = TimestampText(*status.completion_time);
  if (!status.nodes.empty()) {
    for (const NodeStatus& node : status.nodes) json["nodes"].push_back(NodeJson(node));
  }
  if (status.round) json["progress"]["round"] = *status.round;
  for (const Condition& c : status.conditions) {
    json["conditions"].push_back({{"type", c.type},
                                  {"status", NameOf(c.status)},
                                  {"reason", c.reason},
                                  {"message", c.message},
                                  {"lastTransitionTime", TimestampText(c.since)}});
  }
  return json;
}

}  // namespace longhaul::kube
