#include "server/bench_sink.h"

#include <algorithm>
#include <vector>

#include "transport/core/window/close_rule.h"

namespace longhaul::server {

BenchSink::BenchSink(const ServerSettings& settings)
    : max_connections_(settings.bench_connections),
      during_job_(settings.bench_during_job),
      close_ratio_(settings.close_ratio) {}

Status BenchSink::Admit(Peer& peer, const std::string& site, bool job_running) {
  if (max_connections_ == 0) {
    return Status(StatusCode::kUnavailable, "this server takes no load generators (--allow-bench 0)");
  }
  if (job_running && !during_job_) {
    return Status(StatusCode::kUnavailable,
                  "a job is running, which a load generator would disturb (--bench-during-job allows it)");
  }
  if (flows_.size() >= max_connections_) {
    return Status(StatusCode::kResourceExhausted, "there are " + std::to_string(flows_.size()) +
                                                      " load generators here already (--allow-bench)");
  }
  flows_[&peer] = Flow{.peer = &peer,
                       .site = site,
                       .begun = now_,
                       .next_report = now_ + kReportInterval,
                       .totals = {},
                       .windows = {}};
  return {};
}

BenchTotals BenchSink::Remove(Peer& peer) {
  const BenchTotals totals = Totals(peer);
  flows_.erase(&peer);
  return totals;
}

BenchTotals BenchSink::Totals(const Peer& peer) const {
  const Flow& flow = flows_.at(&peer);
  BenchTotals totals = flow.totals;
  totals.elapsed = now_ - flow.begun;
  return totals;
}

Status BenchSink::OnWindowOpened(Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open) {
  Flow& flow = flows_.at(&peer);
  const uint64_t bytes = (uint64_t{open.high_count} + open.low_count) * open.symbol_bytes;
  const auto bound = static_cast<uint64_t>(kMaxOpenBytes.value());
  if (flow.windows.size() >= kMaxOpenWindows || flow.open_bytes + bytes > bound) {
    ++flow.totals.windows_refused;
    return Status(StatusCode::kResourceExhausted,
                  "more windows or bytes open at once than BenchWelcome says");
  }
  Window window;
  window.bytes = bytes;
  window.last_chunk = now_;
  flow.windows.emplace(key, window);
  flow.open_bytes += bytes;
  return {};
}

transport::ChunkVerdict BenchSink::OnChunk(Peer& peer, wire::ReliabilityClass reliability, ByteSpan chunk,
                                           bool repaired) {
  BenchTotals& totals = flows_.at(&peer).totals;
  (reliability == wire::ReliabilityClass::kHigh ? totals.high_bytes : totals.low_bytes) += chunk.size();
  if (repaired) ++totals.chunks_repaired;
  return transport::ChunkVerdict::kTaken;
}

void BenchSink::OnWindowProgress(Peer& peer, transport::WindowKey key) {
  Flow& flow = flows_.at(&peer);
  const auto found = flow.windows.find(key);
  const auto incoming = peer.connection->incoming(key);
  if (found == flow.windows.end() || !incoming) return;
  Window& window = found->second;
  const transport::WindowRxStats& rx = incoming->stats;
  const uint32_t received = rx.high_received + rx.high_repaired + rx.low_received + rx.repair_received;
  if (received != window.received) window.last_chunk = now_;
  window.received = received;
  if (incoming->sender_finished && window.finished.IsInfinite()) window.finished = now_;
  const transport::CloseRuleInput input{
      .energy_ratio = close_ratio_,
      .energy_received = incoming->low_ratio,  // noise: every chunk has as much
      .smoothed_rtt = peer.connection->stats().smoothed_rtt,
      .last_chunk = window.last_chunk,
      .finished = window.finished};
  const transport::CloseDecision decision = transport::EvaluateClose(*incoming, input, now_);
  window.check_at = decision.check_again;
  if (decision.close) Close(flow, key, *decision.close);
}

void BenchSink::Close(Flow& flow, transport::WindowKey key, wire::CloseReason reason) {
  flow.open_bytes -= flow.windows.at(key).bytes;
  flow.windows.erase(key);
  ++flow.totals.windows_closed;
  flow.peer->connection->CloseWindow(key, reason);
}

void BenchSink::HandleTimeout(const Report& report) {
  std::vector<Peer*> to_tell;  // sending may end a connection, but not remove it from here
  for (auto& [peer, flow] : flows_) {
    std::vector<transport::WindowKey> due;
    for (const auto& [key, window] : flow.windows) {
      if (window.check_at <= now_) due.push_back(key);
    }
    for (const transport::WindowKey key : due) OnWindowProgress(*flow.peer, key);
    if (flow.next_report > now_) continue;
    flow.next_report = now_ + kReportInterval;
    to_tell.push_back(flow.peer);
  }
  for (Peer* peer : to_tell) report(*peer, Totals(*peer));
}

Instant BenchSink::NextTimeout() const {
  Instant next = Instant::Infinite();
  for (const auto& [peer, flow] : flows_) {
    next = std::min(next, flow.next_report);
    for (const auto& [key, window] : flow.windows) next = std::min(next, window.check_at);
  }
  return next;
}

}  // namespace longhaul::server
