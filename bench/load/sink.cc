#include "bench/load/sink.h"

#include <algorithm>

namespace longhaul::load {

using server::Peer;

Result<control::ControlMessage> Sink::Admit(Peer& peer, const control::BenchJoin& join, bool job_running) {
  if (job_running && !options_.during_job) {
    return Status(StatusCode::kUnavailable,
                  "a job is running, which a load generator would disturb (--bench-during-job allows it)");
  }
  if (flows_.size() >= options_.max_connections) {
    return Status(StatusCode::kResourceExhausted,
                  "there are " + std::to_string(flows_.size()) +
                      " load generators here already (--max-load-generators)");
  }
  flows_[&peer] = Flow{.peer = &peer,
                       .begun = now_,
                       .next_report = now_ + kReportInterval,
                       .totals = {.site = join.site()},
                       .windows = {}};
  ++gone_.served;
  control::ControlMessage message;
  control::BenchWelcome& welcome = *message.mutable_bench_welcome();
  welcome.set_fec_k(settings_.fec_k);
  welcome.set_fec_depth(settings_.fec_depth);
  const auto idle = std::chrono::duration_cast<std::chrono::milliseconds>(settings_.idle_timeout);
  welcome.set_idle_timeout_ms(static_cast<uint64_t>(idle.count()));
  welcome.set_max_open_windows(kMaxOpenWindows);
  welcome.set_max_open_bytes(static_cast<uint64_t>(kMaxOpenBytes.value()));
  return message;
}

server::GuestTotals Sink::Remove(Peer& peer) {
  const auto found = flows_.find(&peer);
  server::GuestTotals totals = std::move(found->second.totals);
  totals.elapsed = now_ - found->second.begun;
  gone_.bytes += totals.high_bytes + totals.low_bytes;
  flows_.erase(found);
  return totals;
}

control::ControlMessage Sink::Report(const Peer& peer) const {
  const Flow& flow = flows_.at(&peer);
  control::ControlMessage message;
  control::BenchReport& report = *message.mutable_bench_report();
  const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(now_ - flow.begun);
  report.set_elapsed_us(static_cast<uint64_t>(elapsed.count()));
  report.set_high_bytes(flow.totals.high_bytes);
  report.set_low_bytes(flow.totals.low_bytes);
  report.set_chunks_repaired(flow.totals.chunks_repaired);
  report.set_windows_closed(flow.totals.windows_closed);
  return message;
}

Status Sink::OnWindowOpened(Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open) {
  Flow& flow = flows_.at(&peer);
  const uint64_t bytes = (uint64_t{open.high_count} + open.low_count) * open.symbol_bytes;
  const auto bound = static_cast<uint64_t>(kMaxOpenBytes.value());
  if (flow.windows.size() >= kMaxOpenWindows || flow.open_bytes + bytes > bound) {
    return Status(StatusCode::kResourceExhausted,
                  "more windows or bytes open at once than BenchWelcome says");
  }
  flow.windows.emplace(key, Window{bytes, transport::WindowCloser(open.high_count, open.low_count, now_)});
  flow.open_bytes += bytes;
  return {};
}

void Sink::OnChunk(Peer& peer, const transport::event::Chunk& chunk) {
  server::GuestTotals& totals = flows_.at(&peer).totals;
  const bool high = chunk.reliability == wire::ReliabilityClass::kHigh;
  (high ? totals.high_bytes : totals.low_bytes) += chunk.bytes.size();
  if (chunk.repaired) ++totals.chunks_repaired;
}

void Sink::OnWindowState(Peer& peer, const transport::event::WindowState& state) {
  Flow& flow = flows_.at(&peer);
  const auto found = flow.windows.find(state.key);
  if (found == flow.windows.end()) return;
  found->second.closer.Observe(state.window, state.smoothed_rtt, now_);
  CheckClose(flow, state.key);
}

void Sink::CheckClose(Flow& flow, transport::WindowKey key) {
  const auto found = flow.windows.find(key);
  transport::WindowCloser& closer = found->second.closer;
  // The chunks are noise: every one has the same energy.
  const transport::CloseDecision decision = closer.Evaluate(
      {.energy_ratio = settings_.close_ratio, .energy_received = closer.window().low_ratio}, now_);
  if (!decision.close) return;
  flow.open_bytes -= found->second.bytes;
  flow.windows.erase(found);
  ++flow.totals.windows_closed;
  flow.peer->connection->CloseWindow(key, *decision.close);
}

std::vector<Peer*> Sink::HandleTimeout() {
  std::vector<Peer*> due_reports;
  for (auto& [peer, flow] : flows_) {
    std::vector<transport::WindowKey> due;
    for (const auto& [key, window] : flow.windows) {
      if (window.closer.check_at() <= now_) due.push_back(key);
    }
    for (const transport::WindowKey key : due) CheckClose(flow, key);
    if (flow.next_report > now_) continue;
    flow.next_report = now_ + kReportInterval;
    due_reports.push_back(flow.peer);
  }
  return due_reports;
}

Instant Sink::NextTimeout() const {
  Instant next = Instant::Infinite();
  for (const auto& [peer, flow] : flows_) {
    next = std::min(next, flow.next_report);
    for (const auto& [key, window] : flow.windows) next = std::min(next, window.closer.check_at());
  }
  return next;
}

server::GuestStats Sink::stats() const {
  server::GuestStats stats = gone_;
  stats.connections = flows_.size();
  for (const auto& [peer, flow] : flows_) stats.bytes += flow.totals.high_bytes + flow.totals.low_bytes;
  return stats;
}

}  // namespace longhaul::load
