#include "cli/jobs/job_text.h"

#include <algorithm>
#include <utility>

#include "operator/resource/timestamps.h"
#include "proto/utf8.h"

namespace longhaul::cli {
namespace {

using kube::At;
using kube::TextAt;
using nlohmann::json;

constexpr size_t kCellBytes = 253;
constexpr size_t kMessageBytes = 1024;

std::string Cell(const std::string& text) { return text.empty() ? "-" : wire::Printable(text, kCellBytes); }

std::string NumberCell(const json& value) { return value.is_number_integer() ? value.dump() : "-"; }

std::string AgeCell(const std::string& timestamp, Instant now) {
  const auto since = kube::ParseTimestamp(timestamp);
  return since ? AgeText(now - *since) : "-";
}

// Rows of cells, the first being the heads: columns are as wide as what is in them, and three apart.
std::string Columns(const std::vector<std::vector<std::string>>& rows, const std::string& indent) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += indent;
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 3, ' ');
    }
    text += "\n";
  }
  return text;
}

std::string Nodes(const kube::JobStatus& status) {
  if (status.nodes.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "SITE", "GPUS", "PHASE", "IP", "RETRIES", "DISRUPTIONS", "EXIT"}};
  for (const kube::NodeStatus& node : status.nodes) {
    rows.push_back({Cell(node.name), Cell(node.site), std::to_string(node.gpus),
                    std::string(NameOf(node.phase)), Cell(node.pod_ip), std::to_string(node.retries),
                    std::to_string(node.disruptions),
                    node.last_exit_code ? std::to_string(*node.last_exit_code) : "-"});
  }
  return "Nodes:\n" + Columns(rows, "  ");
}

std::string Conditions(const kube::JobStatus& status, Instant now) {
  if (status.conditions.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"}};
  for (const kube::Condition& condition : status.conditions) {
    rows.push_back({Cell(condition.type), std::string(NameOf(condition.status)),
                    AgeText(now - condition.since), Cell(condition.reason),
                    wire::Printable(condition.message, kMessageBytes)});
  }
  return "Conditions:\n" + Columns(rows, "  ");
}

std::string TimeOf(const json& event) {
  for (const char* field : {"lastTimestamp", "eventTime", "firstTimestamp"}) {
    if (std::string time = TextAt(event, {field}); !time.empty()) return time;
  }
  return TextAt(event, {"metadata", "creationTimestamp"});
}

std::string Events(std::vector<json> events, Instant now) {
  if (events.empty()) return "";
  // Times as text are in order, to the second.
  std::ranges::stable_sort(events, {}, [](const json& event) { return TimeOf(event).substr(0, 19); });
  std::vector<std::vector<std::string>> rows = {{"AGE", "TYPE", "REASON", "COUNT", "MESSAGE"}};
  for (const json& event : events) {
    rows.push_back({AgeCell(TimeOf(event), now), Cell(TextAt(event, {"type"})),
                    Cell(TextAt(event, {"reason"})), NumberCell(At(event, {"count"})),
                    wire::Printable(TextAt(event, {"message"}), kMessageBytes)});
  }
  return "Events:\n" + Columns(rows, "  ");
}

}  // namespace

std::string AgeText(Duration age) {
  const int64_t seconds = std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::seconds>(age).count());
  const int64_t minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  const auto two = [](int64_t a, const char* unit, int64_t b, const char* smaller) {
    return std::to_string(a) + unit + (b == 0 ? "" : std::to_string(b) + smaller);
  };
  if (seconds < 120) return std::to_string(seconds) + "s";
  if (minutes < 10) return two(minutes, "m", seconds % 60, "s");
  if (hours < 3) return std::to_string(minutes) + "m";
  if (hours < 8) return two(hours, "h", minutes % 60, "m");
  if (hours < 48) return std::to_string(hours) + "h";
  if (days < 8) return two(days, "d", hours % 24, "h");
  return std::to_string(days) + "d";
}

std::string JobTable(const std::vector<json>& jobs, bool all_namespaces, Instant now) {
  std::vector<std::vector<std::string>> rows = {{"NAME", "PHASE", "GPUS", "READY", "ROUND", "AGE"}};
  if (all_namespaces) rows[0].insert(rows[0].begin(), "NAMESPACE");
  for (const json& job : jobs) {
    std::vector<std::string> row = {Cell(TextAt(job, {"metadata", "name"})),
                                    Cell(TextAt(job, {"status", "phase"})),
                                    NumberCell(At(job, {"spec", "totalGPUs"})),
                                    Cell(TextAt(job, {"status", "readyNodes"})),
                                    NumberCell(At(job, {"status", "progress", "round"})),
                                    AgeCell(TextAt(job, {"metadata", "creationTimestamp"}), now)};
    if (all_namespaces) row.insert(row.begin(), Cell(TextAt(job, {"metadata", "namespace"})));
    rows.push_back(std::move(row));
  }
  return Columns(rows, "");
}

std::string JobProgress(const kube::JobStatus& status) {
  std::string text(NameOf(status.phase));
  if (!status.ready_nodes.empty()) text += ", " + Cell(status.ready_nodes) + " nodes ready";
  if (status.round) text += ", round " + std::to_string(*status.round);
  if (!status.reason.empty()) text += ", " + Cell(status.reason);
  if (!status.message.empty()) text += ": " + wire::Printable(status.message, kMessageBytes);
  return text;
}

std::string JobDescription(const json& job, const std::vector<json>& events, Instant now) {
  const kube::JobStatus status = kube::ParseJobStatus(At(job, {"status"}));
  std::string profile = TextAt(job, {"spec", "profileRef", "name"});
  if (profile.empty()) profile = "(in the job)";
  const std::string requester = TextAt(job, {"metadata", "annotations", kube::kRequesterAnnotation});
  std::string text =
      Columns({{"Name:", Cell(TextAt(job, {"metadata", "name"}))},
               {"Namespace:", Cell(TextAt(job, {"metadata", "namespace"}))},
               {"Age:", AgeCell(TextAt(job, {"metadata", "creationTimestamp"}), now)},
               {"Requester:", Cell(requester.empty() ? status.requester : requester)},
               {"Profile:", Cell(profile)},
               {"GPUs:", NumberCell(At(job, {"spec", "totalGPUs"}))},
               {"Image:", Cell(TextAt(job, {"spec", "image"}))},
               {"State:", TextAt(job, {"status", "phase"}).empty()
                              ? "the operator has not seen it yet: is longhaul-operator running?"
                              : JobProgress(status)}},
              "");
  return text + Nodes(status) + Conditions(status, now) + Events(events, now);
}

}  // namespace longhaul::cli
