#include "bench/load/flow_json.h"

#include <cstdio>

#include "base/units_text.h"

#include "base/flags/counter_json.h"

namespace longhaul::load {
namespace {

using nlohmann::json;
using transport::ConnectionStats;

double Milliseconds(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

json FitJson(const transport::RateSnapshot& rate) {
  return {{"l0", rate.fit.floor},       {"capacity_mbps", rate.fit.capacity.mbps()},
          {"target", rate.target_loss}, {"r2", rate.fit.r_squared},
          {"n", rate.fit.samples},      {"state", rate.fit.state},
          {"basis", rate.fit.basis}};
}

// Shares of the time in which something limited the sending.
json LimiterJson(const ConnectionStats& stats) {
  Duration all{0};
  for (const Duration d : stats.limited) all += d;
  json shares = json::object();
  for (size_t i = 0; i < stats.limited.size(); ++i) {
    const std::string name(transport::RateLimiterName(static_cast<transport::RateLimiter>(i)));
    shares[name] = all <= Duration(0) ? 0.0 : ToSeconds(stats.limited[i]) / ToSeconds(all);
  }
  return shares;
}

json RateJson(const transport::RateSnapshot& rate) {
  return {{"state", rate.state},
          {"bandwidth_mbps", rate.bandwidth.mbps()},
          {"pacing_mbps", rate.pacing_rate.mbps()},
          {"cwnd", rate.cwnd.value()},
          {"send_quantum", rate.send_quantum.value()},
          {"min_rtt_ms", Milliseconds(rate.min_rtt)},
          {"queue_ms", Milliseconds(rate.queue_delay)},
          {"loss", rate.loss},
          {"target_loss", rate.target_loss}};
}

}  // namespace

json FlowJson(const FlowReport& r) {
  const ConnectionStats& c = r.connection;
  json out = CountersJson<ConnectionStats>(transport::kConnectionCounters, c);
  // Of the measured time, and of the server's side.
  out.update(json{{"goodput_mbps", r.goodput_mbps()},
                  {"seconds", ToSeconds(r.time)},
                  {"bytes", r.bytes},
                  {"rtt_ms_p50", r.rtt_ms.Quantile(0.5)},
                  {"rtt_ms_p99", r.rtt_ms.Quantile(0.99)},
                  {"queue_ms_p50", r.queue_ms.Quantile(0.5)},
                  {"queue_ms_p99", r.queue_ms.Quantile(0.99)},
                  {"window_ms_p50", r.window_ms.Quantile(0.5)},
                  {"window_ms_p99", r.window_ms.Quantile(0.99)},
                  {"windows", r.windows},
                  {"loss", r.loss()},
                  {"chunks_repaired", r.repaired},
                  {"datagram_bytes", r.datagram.value()},
                  {"chunk_bytes", r.symbol_bytes},
                  {"fec_k", r.fec_k},
                  {"controller", c.rate.name},
                  {"rate", RateJson(c.rate)},
                  {"fit", FitJson(c.rate)},
                  {"limiter", LimiterJson(c)}});
  return out;
}

json SeriesJson(const std::vector<FlowPoint>& series) {
  json points = json::array();
  uint64_t bytes = 0;
  Duration at{0};
  uint64_t sent = 0;
  for (const FlowPoint& p : series) {
    const double seconds = ToSeconds(p.at - at);
    const auto mbps = [seconds](uint64_t b) {
      return seconds <= 0 ? 0 : static_cast<double>(b) * 8e-6 / seconds;
    };
    json point = RateJson(p.connection.rate);
    point["t"] = ToSeconds(p.at);
    point["goodput_mbps"] = mbps(p.bytes - bytes);
    point["sent_mbps"] = mbps(p.connection.bytes_sent - sent);
    point["rtt_ms"] = Milliseconds(p.connection.latest_rtt);
    point["in_flight"] = p.connection.bytes_in_flight.value();
    point["packets_sent"] = p.connection.packets_sent;
    point["packets_lost"] = p.connection.packets_lost;
    point["packets_spurious"] = p.connection.packets_spurious;
    point["retransmissions"] = p.connection.retransmissions;
    point["fit"] = FitJson(p.connection.rate);
    points.push_back(std::move(point));
    bytes = p.bytes;
    at = p.at;
    sent = p.connection.bytes_sent;
  }
  return points;
}

std::string FlowLine(double at_seconds, double goodput_mbps, const ConnectionStats& now, double loss) {
  char text[240];
  std::snprintf(text, sizeof text,
                "%6.1f s  %8.2f Mbit/s  rtt %6.1f ms  queue %5.1f ms  loss %5.2f %%  %.*s/%.*s %.1f Mbit/s",
                at_seconds, goodput_mbps, Milliseconds(now.latest_rtt),
                Milliseconds(now.latest_rtt - now.min_rtt), loss * 100,
                static_cast<int>(now.rate.name.size()), now.rate.name.data(),
                static_cast<int>(now.rate.state.size()), now.rate.state.data(), now.rate.pacing_rate.mbps());
  return text;
}

}  // namespace longhaul::load
