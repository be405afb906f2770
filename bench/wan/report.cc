#include "bench/wan/report.h"

#include <algorithm>
#include <cstdio>

namespace longhaul::bench {
namespace {

using nlohmann::json;

std::vector<std::string> Runners(const std::vector<CellResult>& cells) {
  std::vector<std::string> names;
  for (const CellResult& cell : cells) {
    for (const Outcome& o : cell.outcomes) {
      if (std::find(names.begin(), names.end(), o.runner) == names.end()) names.push_back(o.runner);
    }
  }
  return names;
}

// The run with the median goodput; null when none worked.
const Outcome* Median(const CellResult& cell, const std::string& runner) {
  std::vector<const Outcome*> runs;
  for (const Outcome& o : cell.outcomes) {
    if (o.runner == runner && o.error.empty()) runs.push_back(&o);
  }
  if (runs.empty()) return nullptr;
  std::sort(runs.begin(), runs.end(),
            [](const Outcome* a, const Outcome* b) { return a->goodput_mbps < b->goodput_mbps; });
  return runs[(runs.size() - 1) / 2];
}

template <typename... T>
std::string Text(const char* format, T... values) {
  char text[200];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

json ToJson(const std::vector<CellResult>& cells) {
  json all = json::array();
  for (const CellResult& cell : cells) {
    json runs = json::array();
    for (const Outcome& o : cell.outcomes) {
      runs.push_back({{"runner", o.runner},
                      {"protection", o.protection},
                      {"error", o.error},
                      {"goodput_mbps", o.goodput_mbps},
                      {"share_of_limit", o.goodput_mbps / LimitMbps(cell.path)},
                      {"payload_share", o.payload_share},
                      {"sender_cpu", o.sender_cpu},
                      {"receiver_cpu", o.receiver_cpu},
                      {"forwarder_cpu", o.forwarder_cpu},
                      {"link_packets", o.link_packets},
                      {"dropped_loss", o.dropped_loss},
                      {"dropped_queue", o.dropped_queue},
                      {"emulator_drops", o.emulator_drops},
                      {"lateness_p99_ms", o.lateness_p99_ms},
                      {"details", o.details}});
    }
    all.push_back({{"path", cell.path.Name()},
                   {"rate_mbps", cell.path.mbps},
                   {"rtt_ms", std::chrono::duration<double, std::milli>(cell.path.rtt).count()},
                   {"queue_ms", std::chrono::duration<double, std::milli>(cell.path.queue).count()},
                   {"loss", cell.path.loss},
                   {"burst", cell.path.burst},
                   {"limit_mbps", LimitMbps(cell.path)},
                   {"runs", runs}});
  }
  return all;
}

std::string ToMarkdown(const std::vector<CellResult>& cells) {
  const std::vector<std::string> runners = Runners(cells);
  std::string out = "| path | limit |", rule = "|---|---|";
  for (const std::string& r : runners) {
    out += " " + r + " |";
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const CellResult& cell : cells) {
    const double limit = LimitMbps(cell.path);
    out += "| " + cell.path.Name() + Text(" | %.1f |", limit);
    for (const std::string& r : runners) {
      const Outcome* o = Median(cell, r);
      out += o == nullptr ? " failed |"
                          : Text(" %.1f (%.0f %%) |", o->goodput_mbps, 100 * o->goodput_mbps / limit);
    }
    out += "\n";
  }
  out +=
      "\n| path | who | dropped by loss | by queue | emulator's own | sender CPU | receiver CPU | emulator "
      "CPU |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const CellResult& cell : cells) {
    for (const std::string& r : runners) {
      const Outcome* o = Median(cell, r);
      if (o == nullptr) continue;
      out +=
          "| " + cell.path.Name() + " | " + r +
          Text(" | %.2f %% | %.2f %% | %llu | %.2f | %.2f | %.2f |\n",
               100 * Share(o->dropped_loss, o->link_packets), 100 * Share(o->dropped_queue, o->link_packets),
               static_cast<unsigned long long>(o->emulator_drops), o->sender_cpu, o->receiver_cpu,
               o->forwarder_cpu);
    }
  }
  return out;
}

std::string ToLine(const Path& path, const Outcome& o) {
  if (!o.error.empty()) return path.Name() + ": " + o.runner + " FAILED: " + o.error;
  return path.Name() +
         Text(
             ": %-16s %8.2f Mbit/s  %5.1f %% of the limit; dropped loss %llu queue %llu own %llu; "
             "CPU %.2f -> %.2f -> %.2f",
             o.runner.c_str(), o.goodput_mbps, 100 * o.goodput_mbps / LimitMbps(path),
             static_cast<unsigned long long>(o.dropped_loss),
             static_cast<unsigned long long>(o.dropped_queue),
             static_cast<unsigned long long>(o.emulator_drops), o.sender_cpu, o.forwarder_cpu,
             o.receiver_cpu);
}

}  // namespace longhaul::bench
