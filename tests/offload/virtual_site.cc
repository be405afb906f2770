#include "tests/offload/virtual_site.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/check.h"

namespace longhaul::offload {

VirtualSite::VirtualSite(const VirtualSiteOptions& options) : options_(options), random_(options.seed) {
  const uint32_t count = options.nodes + (options.aggregator ? 1u : 0u);
  engines_.resize(count);
  dead_.resize(count);
  processes_.resize(count);
  known_.resize(count, processes_);
  for (uint8_t node = 0; node < count; ++node) StartEngine(node);
}

void VirtualSite::StartEngine(uint8_t node) {
  EngineOptions engine = options_.engine;
  engine.node = node;
  engine.nodes = all_nodes();
  engine.ranks = node < options_.nodes ? (uint64_t{1} << options_.ranks) - 1 : 0;
  if (processes_[node] > 0) engine.config_number = static_cast<uint64_t>((now_ - Instant()).count());
  LH_CHECK(Engine::Validate(engine).ok());
  engines_[node] = std::make_unique<Engine>(engine);
}

uint32_t VirtualSite::Key(uint8_t node, uint8_t rank, std::span<std::byte> memory) {
  if (memory.empty()) return 0;
  return engines_[node]->Register(rank, memory).value();
}

void VirtualSite::Post(uint8_t node, uint8_t rank, const WorkRequest& request) {
  LH_CHECK(engines_[node]->Post(now_, rank, request).ok());
}

void VirtualSite::Configure(const JobConfig& config, uint16_t jid) {
  WorkRequest request;
  request.wr_id = UINT64_MAX;
  request.opcode = Opcode::kConfig;
  request.jid = jid;
  request.config = &config;
  for (uint8_t node = 0; node < options_.nodes; ++node) {
    request.root_node = WorkRequest::kThisNode;
    Post(node, 0, request);
  }
  if (!options_.aggregator) return;
  request.root_node = options_.nodes;
  request.wr_id = UINT64_MAX - 1;
  Post(0, 0, request);
}

void VirtualSite::Kill(uint8_t node) { dead_[node] = true; }

void VirtualSite::Restart(uint8_t node) {
  ++processes_[node];
  StartEngine(node);
  dead_[node] = false;
  known_[node] = processes_;
  for (uint8_t other = 0; other < engines_.size(); ++other) {
    if (other != node) Fly(node, other, {}, std::chrono::microseconds(random_.Below(5000)));
  }
}

void VirtualSite::Inject(uint8_t to, const std::vector<uint8_t>& datagram) {
  if (engines_[to]->HandlePacket(now_, datagram) == Engine::Verdict::kOrdinary) passed_on.push_back(datagram);
}

void VirtualSite::Fly(uint8_t from, uint8_t to, const std::vector<uint8_t>& datagram, Duration delay) {
  flights_.push({now_ + delay, number_++, from, to, datagram, processes_[from], known_[from][to]});
}

void VirtualSite::Arrive(const Flight& flight) {
  const uint8_t from = flight.from, to = flight.to;
  const bool hello = flight.datagram.empty();
  if (dead_[to] || (!hello && flight.for_process != processes_[to])) return;
  if (flight.of_process < known_[to][from]) return;
  if (flight.of_process > known_[to][from]) engines_[to]->NodeRestarted(now_, from);
  known_[to][from] = flight.of_process;
  std::vector<uint8_t> datagram = flight.datagram;
  if (!hello && (!filter || filter(from, to, datagram))) Inject(to, datagram);
}

void VirtualSite::Send(uint8_t from, uint8_t to, const std::vector<uint8_t>& datagram) {
  const LinkFaults& faults = options_.faults;
  Duration delay = faults.delay + (slow ? slow(from) : Duration(0));
  if (random_.Chance(faults.reordering)) delay *= static_cast<int64_t>(1 + random_.Below(20));
  if (!random_.Chance(faults.loss)) Fly(from, to, datagram, delay);
  if (random_.Chance(faults.duplication)) Fly(from, to, datagram, delay + faults.delay);
  if (random_.Chance(faults.stale)) {
    Fly(from, to, datagram, std::chrono::microseconds(random_.Below(50'000)));
  }
}

// Everything that the engines have to do and to say now.
void VirtualSite::Settle() {
  std::vector<uint8_t> datagram(kHeaderBytes + options_.engine.seg_bytes);
  for (uint8_t node = 0; node < engines_.size(); ++node) {
    if (dead_[node]) continue;
    Engine& engine = *engines_[node];
    engine.HandleTimeout(now_);
    while (engine.Advance(now_, uint64_t{1} << 30)) {
    }
    while (const auto out = engine.PollTransmit(now_, datagram)) {
      Send(node, out->target, {datagram.begin(), datagram.begin() + static_cast<ptrdiff_t>(out->bytes)});
    }
    for (uint8_t rank = 0; rank < options_.ranks; ++rank) {
      Completion completion;
      while (engine.Poll(rank, {&completion, 1}) > 0) completions_[{node, rank}].push_back(completion);
    }
  }
}

void VirtualSite::RunFor(Duration time) {
  const Instant end = now_ + time;
  for (;;) {
    Settle();
    Instant next = flights_.empty() ? Instant::Infinite() : flights_.top().at;
    for (uint8_t node = 0; node < engines_.size(); ++node) {
      if (!dead_[node]) next = std::min(next, engines_[node]->NextTimeout());
    }
    if (next > end) break;
    now_ = std::max(now_, next);
    while (!flights_.empty() && flights_.top().at <= now_) {
      const Flight flight = flights_.top();
      flights_.pop();
      Arrive(flight);
    }
  }
  if (time < std::chrono::seconds(1000)) now_ = end;
}

size_t VirtualSite::CountOf(uint8_t node, uint8_t rank, uint64_t wr_id) {
  return static_cast<size_t>(std::ranges::count(completions_[{node, rank}], wr_id, &Completion::wr_id));
}

Completion VirtualSite::CompletionOf(uint8_t node, uint8_t rank, uint64_t wr_id) {
  const auto& all = completions_[{node, rank}];
  const auto found = std::ranges::find(all, wr_id, &Completion::wr_id);
  if (CountOf(node, rank, wr_id) != 1) {
    throw std::runtime_error("node " + std::to_string(node) + " rank " + std::to_string(rank) + ": " +
                             std::to_string(CountOf(node, rank, wr_id)) + " completions of request " +
                             std::to_string(wr_id));
  }
  return *found;
}

uint32_t VirtualSite::SegsInUse() {
  uint32_t sum = 0;
  for (auto& engine : engines_) sum += engine->stats().segs_in_use;
  return sum;
}

}  // namespace longhaul::offload
