#include "server/grants/grants.h"

#include <algorithm>
#include <cmath>

#include "base/inject.h"

namespace longhaul::server {
namespace {

// A worker that sends at least this share of its grant is limited by it (the rate controller's own cycle goes
// down to 0.9 x 0.99 of it); one that stays below for kUnusedRtts is limited by its own path.
constexpr double kBound = 0.87;
constexpr int kUnusedRtts = 2;
// Room for a worker to show that its path takes more: above the probing gain of the rate controller, 1.25.
constexpr double kHeadroom = 1.35;
const Bandwidth kNoCeiling = Bandwidth::Mbps(1e6);  // above any link
// Decay of the best rate, per round trip.
constexpr double kForget = 0.95;
// A rate that grows by this factor within a round trip is still growing.
constexpr double kGrowing = 1.1;
// The least share of an active worker, relative to an equal share.
constexpr double kLeastShare = 1.0 / 16;
// Time beyond two RTTs that a receive window covers: a lost packet stays in flight until it is declared lost,
// 5/4 of an RTT and an ACK delay later, and timers on both ends are late.
constexpr Duration kWindowSlack = std::chrono::milliseconds(25);
constexpr int64_t kMinWindowDatagrams = 16;  // so that ACKs leave by count: AckTracker::kMinPacketsPerAck
// Before anything was measured.
constexpr Duration kUnknownRtt = std::chrono::milliseconds(100);

CapacityEstimator::Options EstimatorOptions(const GrantSettings& settings) {
  return {.floor = settings.capacity_floor, .cap = settings.capacity_cap};
}

bool Differs(Bandwidth a, Bandwidth b) {
  if (a.IsZero() || b.IsZero()) return a != b;
  return a > b * (1 + Grants::kMinChange) || a < b * (1 - Grants::kMinChange);
}

struct Bounds {
  double low = 0;
  double high = 0;
};

// Of all shares at a level, and what it grows by with the level.
struct Sum {
  double total = 0;
  double slope = 0;
};

Sum SumAt(std::span<const Claim> claims, std::span<const Bounds> bounds, double level) {
  Sum sum;
  for (size_t i = 0; i < claims.size(); ++i) {
    const double share = level * claims[i].weight;
    const bool inside = share > bounds[i].low && share < bounds[i].high;
    sum.total += std::clamp(share, bounds[i].low, bounds[i].high);
    sum.slope += inside ? claims[i].weight : 0;
  }
  return sum;
}

// The level at which the shares are the capacity. Their sum grows with it in straight pieces: a step along
// the piece that a level is on ends there, unless the piece ends before. 5 steps (35 at most, of 2,400 random
// sets of claims) where halving takes 60, over all workers for each window that opens or closes.
// REQUIRES: SumAt(high) is above `available`, SumAt(0) is not.
double LevelFor(double available, std::span<const Claim> claims, std::span<const Bounds> bounds,
                double high) {
  constexpr double kNear = 4e-13;  // below a bit per second of any link, and far above a double's resolution
  double low = 0;
  double weights = 0;
  for (const Claim& claim : claims) weights += claim.weight;
  double guess = available / weights;
  for (int step = 0; high - low > 3 * kNear * high; ++step) {
    // To one side of the guess and then to the other: the interval shrinks to it.
    double level = guess * (step % 2 == 0 ? 1 - kNear : 1 + kNear);
    if (step % 8 == 7 || level <= low || level >= high) level = low + (high - low) / 2;
    const Sum sum = SumAt(claims, bounds, level);
    (sum.total > available ? high : low) = level;
    if (sum.slope > 0) guess = level + (available - sum.total) / sum.slope;
  }
  return low;
}

}  // namespace

std::vector<Bandwidth> WaterFill(Bandwidth capacity, std::span<const Claim> claims) {
  const auto available = static_cast<double>(capacity.bits_per_second());
  std::vector<Bounds> bounds(claims.size());
  double floors = 0;
  for (size_t i = 0; i < claims.size(); ++i) {
    bounds[i].high = std::min(available, static_cast<double>(claims[i].ceiling.bits_per_second()));
    bounds[i].low = std::min(bounds[i].high, static_cast<double>(claims[i].floor.bits_per_second()));
    floors += bounds[i].low;
  }
  if (floors > available) {
    for (Bounds& b : bounds) b.low = b.high = b.low * (available / floors);
  }
  // Upper bound of the level: every claim with a weight has its ceiling or the whole capacity.
  double high = 0;
  for (size_t i = 0; i < claims.size(); ++i) {
    if (claims[i].weight > 0) high = std::max(high, bounds[i].high / claims[i].weight);
  }
  const bool all_fit = SumAt(claims, bounds, high).total <= available;
  const double level = all_fit ? high : LevelFor(available, claims, bounds, high);
  std::vector<Bandwidth> shares;
  shares.reserve(claims.size());
  for (size_t i = 0; i < claims.size(); ++i) {
    const double share = std::clamp(level * claims[i].weight, bounds[i].low, bounds[i].high);
    shares.push_back(Bandwidth::BitsPerSecond(static_cast<int64_t>(std::floor(share))));
  }
  return shares;
}

Grants::Grants(const GrantSettings& settings, uint32_t world_size, ByteCount receive_window)
    : settings_(settings),
      receive_window_(receive_window),
      estimator_(EstimatorOptions(settings)),
      workers_(world_size) {}

// --- Members and their demand ---

void Grants::Join(Instant now, Peer& peer) {
  if (!settings_.enabled) return;
  Worker& worker = workers_[peer.rank];
  if (worker.present()) Leave(now, peer.rank);
  worker = {};
  worker.peer = &peer;
  worker.window = receive_window_;
  worker.rtt = kUnknownRtt;
  ++present_;
  dirty_ = true;
}

void Grants::Leave(Instant now, uint32_t rank) {
  Worker& worker = workers_[rank];
  if (!worker.present()) return;
  if (worker.active) --active_;
  worker = {};
  --present_;
  dirty_ = true;
  ArmTick(now);
}

void Grants::OnWindow(Instant now, uint32_t rank) {
  Worker& worker = workers_[rank];
  if (!worker.present()) return;
  const bool active = !worker.peer->transfers.empty();
  if (active == worker.active) return;
  worker.active = active;
  worker.draining = false;
  dirty_ = true;
  if (!active) {
    --active_;
    worker.measured = false;
    return ArmTick(now);
  }
  if (active_++ == 0) busy_since_ = now;
  worker.was_active = true;
  worker.active_since = worker.judged_at = now;
  worker.unused = 0;
  if (worker.ceiling != Bandwidth::Max()) {
    worker.ceiling = worker.ceiling * kHeadroom;  // its path may have changed
    if (worker.ceiling > kNoCeiling) worker.ceiling = Bandwidth::Max();
  }
  worker.demand = std::max(worker.demand, Lacking(worker));
  const transport::ConnectionStats stats = worker.peer->connection->stats();
  if (stats.smoothed_rtt > Duration(0)) worker.rtt = stats.smoothed_rtt;
  worker.previous =
      worker.before_previous = {stats.bytes_received, stats.packets_received, stats.packets_expected};
  ArmTick(now);
}

// Chunk bytes that its open windows wait for and that may still be sent.
ByteCount Grants::Lacking(const Worker& worker) const {
  ByteCount lacking;
  const size_t chunk_bytes = worker.peer->connection->MaxChunkBytes();
  for (const auto& [key, transfer] : worker.peer->transfers) {
    const transport::IncomingWindow& window = transfer.closer.window();
    const uint64_t high = window.high_count - window.stats.high_received - window.stats.high_repaired;
    // Lost low chunks are not sent again: scale the arrived ones up to the sent ones.
    const double arrived = window.stats.low_received / (1.0 - std::min(estimator_.usual_loss(), 0.5));
    const double low = window.sender_finished ? 0.0 : std::max(0.0, window.low_count - arrived);
    lacking += ByteCount(static_cast<int64_t>(high * chunk_bytes)) +
               ByteCount(static_cast<int64_t>(low * static_cast<double>(chunk_bytes)));
  }
  return lacking;
}

Duration Grants::Rtt() const {
  Duration rtt(0);
  for (const Worker& worker : workers_) {
    if (worker.active) rtt = std::max(rtt, worker.rtt);
  }
  return rtt > Duration(0) ? rtt : kUnknownRtt;
}

// --- Measurement ---

void Grants::ArmTick(Instant now) {
  if (active_ == 0) {
    next_tick_ = Instant::Infinite();
    estimator_.OnIdle();
    for (Worker& worker : workers_) {
      if (worker.was_active) worker.usual_demand = worker.demand;
      worker.was_active = false;
      worker.demand = ByteCount();
    }
    return;
  }
  if (!next_tick_.IsInfinite()) return;
  previous_tick_ = before_previous_tick_ = now;
  next_tick_ = now + TickTime();
}

Duration Grants::TickTime() const { return std::clamp<Duration>(Rtt() / 4, kMinTick, kMaxTick); }

void Grants::Tick(Instant now) {
  const ArrivalSample sample = TakeSample(now);
  estimator_.OnSample(sample);
  LimitByOwnPath(now, sample.bound > 0);
  before_previous_tick_ = previous_tick_;
  previous_tick_ = now;
  next_tick_ = now + TickTime();
}

ArrivalSample Grants::TakeSample(Instant now) {
  const Duration since = now - before_previous_tick_;
  ArrivalSample sample;
  sample.now = now;
  sample.rtt = Rtt();
  uint64_t expected = 0;
  uint64_t arrived = 0;
  std::vector<Duration> queues;
  for (Worker& worker : workers_) {
    if (!worker.active) continue;
    Measure(worker, since, &expected, &arrived);
    sample.arrival = sample.arrival + worker.arrival;
    if (!worker.measured) continue;
    ++sample.sending;
    queues.push_back(worker.queue);
    const bool queued = worker.queue > CapacityEstimator::QueueThreshold(worker.rtt);
    sample.queued += queued ? 1 : 0;
    if (worker.draining || !IsBound(worker)) continue;
    ++sample.bound;
    sample.bound_queued += queued ? 1 : 0;
    if (worker.queue < CapacityEstimator::NoQueue(worker.rtt)) ++sample.bound_free;
  }
  if (expected > arrived)
    sample.loss = static_cast<double>(expected - arrived) / static_cast<double>(expected);
  if (!queues.empty()) {
    const auto middle = queues.begin() + static_cast<ptrdiff_t>(queues.size() / 2);
    std::nth_element(queues.begin(), middle, queues.end());
    sample.queue = *middle;
  }
  return sample;
}

void Grants::Measure(Worker& worker, Duration since, uint64_t* expected, uint64_t* arrived) {
  const transport::ConnectionStats stats = worker.peer->connection->stats();
  const Counts counts{stats.bytes_received, stats.packets_received, stats.packets_expected};
  const uint64_t bytes = counts.bytes - worker.before_previous.bytes;
  const uint64_t packets = counts.packets - worker.before_previous.packets;
  // Packet numbers are untrusted: cap the inferred loss at 50 %.
  const uint64_t expected_now = counts.expected - worker.before_previous.expected;
  const uint64_t sent = std::clamp(expected_now, packets, packets * 2);
  worker.arrival = Bandwidth::FromBytesAndTime(ByteCount(static_cast<int64_t>(bytes)), since);
  worker.sent = packets == 0 ? Bandwidth::Zero()
                             : worker.arrival * (static_cast<double>(sent) / static_cast<double>(packets));
  worker.measured = worker.active_since <= before_previous_tick_ && packets >= 2;
  if (stats.smoothed_rtt > Duration(0)) worker.rtt = stats.smoothed_rtt;
  worker.queue = stats.incoming_queue;
  worker.before_previous = worker.previous;
  worker.previous = counts;
  *expected += sent;
  *arrived += packets;

  const ByteCount lacking = Lacking(worker);
  worker.demand = std::max(worker.demand, lacking);
  // A new grant takes effect one round trip from now: what arrives until then is already in flight.
  worker.rest = std::max(ByteCount(), lacking - worker.arrival * worker.rtt);
  const bool draining = worker.measured && worker.rest.value() == 0;
  if (draining != worker.draining) dirty_ = true;
  worker.draining = draining;
}

bool Grants::IsBound(const Worker& worker) const {
  return !worker.granted.IsZero() && worker.sent >= worker.granted * kBound;
}

void Grants::LimitByOwnPath(Instant now, bool wanted) {
  for (Worker& worker : workers_) {
    if (!worker.active || !worker.measured || worker.draining || worker.granted.IsZero()) continue;
    if (now - worker.judged_at < worker.rtt) continue;
    Judge(worker, wanted);
    worker.judged_at = now;
    worker.sent_then = worker.sent;
  }
}

void Grants::Judge(Worker& worker, bool wanted) const {
  const bool unused = worker.sent < worker.granted * kBound && worker.sent < worker.sent_then * kGrowing;
  worker.unused = unused ? worker.unused + 1 : 0;
  worker.best = std::max(worker.sent, worker.best * kForget);
  if (worker.unused >= kUnusedRtts && (wanted || worker.ceiling != Bandwidth::Max())) {
    worker.ceiling = worker.best * kHeadroom;
  } else if (!unused && worker.ceiling != Bandwidth::Max()) {
    // It uses its grant: raise the ceiling until something else is the limit.
    worker.ceiling = worker.ceiling > worker.granted * 2.0 ? Bandwidth::Max() : worker.ceiling * kHeadroom;
  }
}

// --- Grants ---

Bandwidth Grants::Budget() const {
  if (settings_.capacity.IsZero()) return estimator_.budget();
  double payload = 1;  // smallest share of payload in a full datagram, over the workers
  for (const Worker& worker : workers_) {
    if (!worker.present()) continue;
    const int64_t datagram = worker.peer->connection->max_datagram().value();
    const int64_t headers = worker.peer->connection->peer().IsV4() ? kHeaderBytesV4 : kHeaderBytesV6;
    payload = std::min(payload, static_cast<double>(datagram) / static_cast<double>(datagram + headers));
  }
  return settings_.capacity * (payload * link_part_);
}

bool Grants::IsExpected(Instant now, const Worker& worker) const {
  return worker.present() && !worker.active && !worker.was_active && now - busy_since_ < Rtt() * kGrace;
}

double Grants::Weight(const Worker& worker, bool busy, double mean) const {
  if (busy && worker.active && worker.measured) return static_cast<double>(worker.rest.value());
  const double demand = static_cast<double>((worker.active ? worker.demand : worker.usual_demand).value());
  return demand > 0 ? demand : mean;
}

void Grants::Divide(Instant now) {
  const Bandwidth budget = Budget();
  if (budget.IsZero()) return;  // unknown: no worker is bounded
  const bool busy = std::ranges::any_of(workers_, [](const Worker& w) { return w.active && !w.draining; });
  double known = 0;
  uint32_t counted = 0;
  for (const Worker& worker : workers_) {
    const double weight = worker.present() ? Weight(worker, busy, 0) : 0;
    known += weight;
    counted += weight > 0 ? 1 : 0;
  }
  const double mean = counted == 0 ? 1.0 : known / counted;

  const Bandwidth least = std::max(budget * (kLeastShare / std::max(1u, present_)), settings_.worker_floor);
  std::vector<Claim> claims;
  std::vector<Worker*> claimants;
  std::vector<Worker*> idle;
  for (Worker& worker : workers_) {
    if (!worker.present()) continue;
    const bool claims_now = busy ? (worker.active && !worker.draining) || IsExpected(now, worker) : true;
    if (!claims_now) {
      if (!worker.active) idle.push_back(&worker);
      continue;
    }
    claims.push_back({.weight = Weight(worker, busy, mean),
                      .floor = least,
                      .ceiling = std::min(settings_.worker_cap, worker.ceiling)});
    claimants.push_back(&worker);
  }
  // Reserve the shares of workers that have not joined yet.
  const double present = busy ? 1.0 : static_cast<double>(present_) / static_cast<double>(workers_.size());
  std::vector<Bandwidth> shares = WaterFill(budget * present, claims);
  RedistributeSurplus(budget * present, &claims, &shares);
  FitUnacknowledgedGrants(now, budget * present, claimants, &shares);
  for (size_t i = 0; i < shares.size(); ++i) SendGrant(now, *claimants[i], shares[i]);
  for (Worker* worker : idle) {
    const Bandwidth part = budget * (kLatecomers / static_cast<double>(idle.size()));
    const Bandwidth equal = budget * (1.0 / static_cast<double>(present_));
    SendGrant(now, *worker, std::min({part, equal, settings_.worker_cap}));
  }
}

void Grants::RedistributeSurplus(Bandwidth budget, std::vector<Claim>* claims,
                                 std::vector<Bandwidth>* shares) const {
  Bandwidth given;
  for (const Bandwidth share : *shares) given = given + share;
  if (given > budget * (1 - kMinChange)) return;
  for (size_t i = 0; i < claims->size(); ++i) {
    (*claims)[i].floor = (*shares)[i];
    (*claims)[i].ceiling = settings_.worker_cap;
  }
  *shares = WaterFill(budget, *claims);
}

void Grants::FitUnacknowledgedGrants(Instant now, Bandwidth budget, const std::vector<Worker*>& workers,
                                     std::vector<Bandwidth>* shares) const {
  int64_t excess = -budget.bits_per_second();
  int64_t gains = 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    const Bandwidth had = workers[i]->granted;
    const Bandwidth share = (*shares)[i];
    const bool current = GrantIsCurrent(now, *workers[i], share);
    excess += (current ? had : share).bits_per_second();
    if (!current && share > had) gains += (share - had).bits_per_second();
  }
  if (excess <= 0 || gains == 0) return;
  const double kept = std::max(0.0, 1.0 - static_cast<double>(excess) / static_cast<double>(gains));
  for (size_t i = 0; i < workers.size(); ++i) {
    const Bandwidth had = workers[i]->granted;
    Bandwidth& share = (*shares)[i];
    if (share > had && !GrantIsCurrent(now, *workers[i], share)) share = had + (share - had) * kept;
  }
}

bool Grants::GrantIsCurrent(Instant now, const Worker& worker, Bandwidth rate) const {
  return !Differs(rate, worker.granted) || (!dirty_ && now - worker.granted_at < worker.rtt / 2);
}

void Grants::SendGrant(Instant now, Worker& worker, Bandwidth rate) {
  if (GrantIsCurrent(now, worker, rate) || LH_INJECT("grant-withheld")) return;
  worker.granted = rate;
  worker.granted_at = now;
  worker.window = ReceiveWindow(worker, rate);
  worker.peer->connection->Grant(rate, worker.window);
  ++updates_;
}

ByteCount Grants::ReceiveWindow(const Worker& worker, Bandwidth rate) const {
  const ByteCount wanted = rate * (worker.rtt * 2 + kWindowSlack);
  const ByteCount bound = receive_window_ * std::min(1.0, rate / Budget());
  const ByteCount least = worker.peer->connection->max_datagram() * kMinWindowDatagrams;
  return std::max(least, std::min(wanted, bound));
}

void Grants::ShareLink() {
  if (!settings_.link) return;
  settings_.link->SetRunning(present_ > 0);
  const double part = settings_.link->Part();
  dirty_ = dirty_ || part != link_part_;
  link_part_ = part;
}

void Grants::Run(Instant now) {
  ShareLink();
  const bool due = now >= next_tick_;
  if (due) Tick(now);
  if (!due && !dirty_) return;
  Divide(now);
  dirty_ = false;
}

GrantStats Grants::stats() const {
  GrantStats stats;
  stats.estimated = settings_.capacity.IsZero();
  stats.capacity = stats.estimated ? estimator_.capacity() : settings_.capacity * link_part_;
  stats.updates = updates_;
  for (const Worker& worker : workers_) {
    stats.by_rank.push_back(
        {.rate = worker.granted, .receive_window = worker.window, .arrival = worker.arrival});
  }
  return stats;
}

}  // namespace longhaul::server
