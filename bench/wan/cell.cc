#include "bench/wan/cell.h"

#include <algorithm>
#include <cstdio>

#include "longhaul/job.h"

namespace longhaul::bench {

wan::LinkOptions Path::Link() const {
  wan::LinkOptions link;
  link.rate = Bandwidth::Mbps(mbps);
  link.delay = rtt / 2;
  link.queue_time = queue;
  link.loss = loss;
  link.loss_burst = burst;
  return link;
}

std::string Path::Name() const {
  char text[128];
  std::snprintf(text, sizeof text, "%g Mbit/s, %g ms, %g %%", mbps,
                std::chrono::duration<double, std::milli>(rtt).count(), loss * 100);
  std::string name = text;
  if (burst >= 1) {
    std::snprintf(text, sizeof text, " in bursts of %g", burst);
    name += text;
  }
  return name;
}

Result<Runner> ParseRunner(const std::string& name) {
  Runner r;
  r.name = name;
  std::string rest = name;
  const auto strip = [&rest](const std::string& suffix) {
    if (!rest.ends_with(suffix)) return false;
    rest.resize(rest.size() - suffix.size());
    return true;
  };
  if (rest.starts_with("tcp-")) {
    r.tcp = true;
    if (strip("-stock")) r.tuned = false;
    if (strip("-x4")) r.connections = 4;
    r.control = rest.substr(4);
    if (r.control == "cubic" || r.control == "bbr" || r.control == "reno") return r;
    return Status(StatusCode::kInvalidArgument, "no controller " + name);
  }
  if (strip("-insecure")) r.insecure = true;
  r.control = rest.starts_with("longhaul-") ? rest.substr(9) : rest;
  if (rest.starts_with("longhaul") && FromName<RateControl>(r.control)) return r;
  return Status(StatusCode::kInvalidArgument, "no controller " + name);
}

double LimitMbps(const Path& path) { return path.mbps * (1 - path.loss) * 0.95; }

LinkWatch::LinkWatch(wan::TunWan* wan)
    : wan_(wan),
      link_(wan->Link("B", "A")->counters),
      forwarder_(wan->ForwarderStatistics()),
      kernel_(wan->KernelCounters()) {}

void LinkWatch::Finish(Outcome* outcome) const {
  const wan::LinkCounters link = wan_->Link("B", "A")->counters;
  const wan::ForwarderStats forwarder = wan_->ForwarderStatistics();
  const wan::TunKernelCounters kernel = wan_->KernelCounters();
  outcome->link_packets = link.packets_in - link_.packets_in;
  outcome->dropped_loss = link.dropped_loss - link_.dropped_loss;
  outcome->dropped_queue = link.dropped_queue - link_.dropped_queue;
  outcome->emulator_drops = (forwarder.overload - forwarder_.overload) +
                            (forwarder.write_errors - forwarder_.write_errors) +
                            (kernel.dropped_before_read - kernel_.dropped_before_read) +
                            (kernel.dropped_after_write - kernel_.dropped_after_write);
  const double wall = std::chrono::duration<double>(forwarder.uptime - forwarder_.uptime).count();
  const double cpu = std::chrono::duration<double>(forwarder.cpu_time - forwarder_.cpu_time).count();
  outcome->forwarder_cpu = wall <= 0 ? 0 : cpu / wall;
  outcome->lateness_p99_ms =
      std::chrono::duration<double, std::milli>(forwarder.lateness.Quantile(0.99)).count();
}

}  // namespace longhaul::bench
