#include "tests/sim/rate/rate_sim.h"

#include <algorithm>

namespace longhaul::transport::sim {
namespace {

constexpr uint64_t kPath = 1;
constexpr uint64_t kFirstFlow = 100;

}  // namespace

Simulation::Simulation(const LinkOptions& link) : chance_(link.seed), path_(link, chance_.Fork(kPath)) {}

size_t Simulation::AddFlow(const FlowOptions& options) {
  const size_t id = flows_.size();
  flows_.push_back(std::make_unique<RateFlow>(options, &path_, chance_.Fork(kFirstFlow + id)));
  return id;
}

void Simulation::RunUntil(Instant end) {
  while (Step(end)) {
  }
  now_ = end;
}

bool Simulation::RunUntil(Instant end, const std::function<bool()>& done) {
  while (Step(end)) {
    if (done()) return true;
  }
  now_ = end;
  return false;
}

bool Simulation::Step(Instant end) {
  RateFlow* next = nullptr;
  Instant time = Instant::Infinite();
  for (auto& flow : flows_) {
    const Instant event = flow->NextEvent();
    if (event < time) {
      time = event;
      next = flow.get();
    }
  }
  if (!changes_.empty() && changes_.begin()->first <= std::min(time, end)) {
    const auto change = changes_.extract(changes_.begin());
    now_ = std::max(now_, change.key());
    change.mapped()();
    return true;
  }
  if (next == nullptr || time > end) return false;
  now_ = std::max(now_, time);
  next->Handle(now_);
  return true;
}

void Simulation::ResetStats() {
  for (auto& flow : flows_) flow->ResetStats();
  path_.ResetStats();
  measured_from_ = now_;
}

void Simulation::SetRate(Bandwidth rate) {
  const double factor = path_.options().rate / rate;
  for (auto& flow : flows_) flow->StretchDepartures(now_, factor);
  path_.SetRate(rate, now_);
}

Bandwidth Simulation::Goodput(size_t flow) const {
  return Bandwidth::FromBytesAndTime(stats(flow).arrived, now_ - measured_from_);
}

double Simulation::Utilisation() const {
  const LinkOptions& link = path_.options();
  const Bandwidth capacity = link.policer_rate.IsZero() ? link.rate : std::min(link.rate, link.policer_rate);
  double total = 0;
  for (size_t i = 0; i < flows_.size(); ++i) total += Goodput(i) / capacity;
  return total / (1 - link.loss);
}

double Simulation::OwnLoss() const {
  ByteCount sent;
  ByteCount dropped;
  for (const auto& flow : flows_) {
    sent += flow->stats().sent;
    dropped += flow->stats().queue_drops + flow->stats().policer_drops;
  }
  return sent.value() == 0 ? 0 : dropped / sent;
}

std::vector<double> Simulation::Shares() const {
  ByteCount total;
  for (const auto& flow : flows_) total += flow->stats().arrived;
  std::vector<double> shares;
  for (const auto& flow : flows_) shares.push_back(total.value() == 0 ? 0 : flow->stats().arrived / total);
  return shares;
}

ByteCount Simulation::worst_overshoot() const {
  ByteCount worst;
  for (const auto& flow : flows_) worst = std::max(worst, flow->worst_overshoot());
  return worst;
}

double JainIndex(const std::vector<double>& shares) {
  double sum = 0;
  double squares = 0;
  for (const double share : shares) {
    sum += share;
    squares += share * share;
  }
  return squares <= 0 ? 0 : sum * sum / (static_cast<double>(shares.size()) * squares);
}

}  // namespace longhaul::transport::sim
