#include "wan/tun/stats_json.h"

#include <nlohmann/json.hpp>

namespace longhaul::wan {
namespace {

using nlohmann::ordered_json;

double Microseconds(Duration t) { return static_cast<double>(t.count()) / 1e3; }
double Seconds(Duration t) { return static_cast<double>(t.count()) / 1e9; }

ordered_json LinkJson(const TunWan::LinkReport& link) {
  const LinkCounters& c = link.counters;
  return {{"from", link.from},
          {"to", link.to},
          {"options", link.options.ToString()},
          {"packets_in", c.packets_in},
          {"bytes_in", c.bytes_in},
          {"packets_delivered", c.packets_delivered},
          {"bytes_delivered", c.bytes_delivered},
          {"dropped_loss", c.dropped_loss},
          {"dropped_loss_bytes", c.dropped_loss_bytes},
          {"dropped_queue", c.dropped_queue},
          {"dropped_queue_bytes", c.dropped_queue_bytes},
          {"dropped_outage", c.dropped_outage},
          {"dropped_outage_bytes", c.dropped_outage_bytes},
          {"dropped_mtu", c.dropped_mtu},
          {"dropped_mtu_bytes", c.dropped_mtu_bytes},
          {"duplicated", c.duplicated},
          {"reordered", c.reordered},
          {"corrupted", c.corrupted},
          {"loss_bursts", c.loss_bursts},
          {"drops_are_merged", link.drops_are_merged},
          {"queue_delay_us", Microseconds(link.queue_delay)},
          {"max_queue_delay_us", Microseconds(c.max_queue_delay)}};
}

ordered_json ForwarderJson(const ForwarderStats& f) {
  return {{"packets_read", f.packets_read},
          {"packets_written", f.packets_written},
          {"not_ipv4", f.not_ipv4},
          {"no_route", f.no_route},
          {"overload", f.overload},
          {"write_errors", f.write_errors},
          {"in_flight", f.in_flight},
          {"max_in_flight", f.max_in_flight},
          {"lateness_p50_us", Microseconds(f.lateness.Quantile(0.5))},
          {"lateness_p99_us", Microseconds(f.lateness.Quantile(0.99))},
          {"lateness_p999_us", Microseconds(f.lateness.Quantile(0.999))},
          {"lateness_max_us", Microseconds(f.lateness.max())},
          {"cpu_s", Seconds(f.cpu_time)},
          {"realtime", f.realtime}};
}

}  // namespace

std::string ToJson(const WanSnapshot& snapshot) {
  ordered_json sites = ordered_json::array(), links = ordered_json::array();
  for (const auto& site : snapshot.sites) {
    sites.push_back({{"name", site.name}, {"address", site.address}, {"namespace", site.namespace_path}});
  }
  for (const auto& link : snapshot.links) links.push_back(LinkJson(link));
  const ordered_json all = {{"tag", snapshot.tag},
                            {"backend", snapshot.backend},
                            {"backend_reason", snapshot.backend_reason},
                            {"seed", snapshot.seed},
                            {"uptime_s", Seconds(snapshot.forwarder.uptime)},
                            {"sites", sites},
                            {"links", links},
                            {"forwarder", ForwarderJson(snapshot.forwarder)},
                            {"kernel_dropped_before_read", snapshot.kernel.dropped_before_read},
                            {"kernel_dropped_after_write", snapshot.kernel.dropped_after_write}};
  return all.dump(2) + "\n";
}

}  // namespace longhaul::wan
