#include "offload/ringsim/ring_sim.h"

#include <algorithm>
#include <optional>
#include <queue>

namespace longhaul::offload::ringsim {
namespace {

using Parts = std::vector<uint8_t>;

void AddTo(Parts& sum, const Parts& more) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<uint8_t>(sum[i] + more[i]);
}

// At one time sums are made before messages come, and messages come before patience ends: "late" is later
// than.
enum class What : uint8_t { kOwn, kMade, kMessage, kDeadline };

struct Event {
  Instant at;
  What what;
  uint64_t number;  // in order of making
  uint32_t node;
  uint32_t chunk;
  uint32_t from = 0;
  Partial says = {};
  Parts holds = {};

  bool operator>(const Event& o) const {
    return std::tie(at, what, number) > std::tie(o.at, o.what, o.number);
  }
};

// One chunk at one node.
struct Place {
  RingHop hop;
  Parts sum;
  uint32_t merged = 0;
  Partial says = {};
};

class Round {
 public:
  Round(const RingModel& model, const RingLoad& load, Contributors leaves, std::vector<Deadlines>& deadlines)
      : model_(model), load_(load), random_(load.seed), free_(model.nodes) {
    const Contributors nodes = model.nodes == kMaxRingNodes ? ~Contributors{0} : Bit(model.nodes) - 1;
    of_hops_.reserve(size_t{model.chunks()} * model.nodes);
    for (uint32_t chunk = 0; chunk < model.chunks(); ++chunk) {
      orders_.push_back(MakeRingOrder(nodes, leaves, chunk));
      places_.emplace_back(model.nodes);
      for (uint32_t p = 0; p < orders_.back().size; ++p) Take(p, chunk, deadlines);
      for (uint32_t node = 0; node < model.nodes; ++node)
        Push(load.host[At(node, chunk)], What::kOwn, node, chunk);
    }
    done_.resize(model.chunks());
    outcome_.at_owner.resize(model.chunks());
  }

  RingOutcome Run() {
    Instant last;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.what != What::kDeadline) last = event.at;
      Handle(event);
    }
    outcome_.stuck = !std::ranges::all_of(done_, [](const auto& d) { return d.has_value(); });
    if (!outcome_.stuck) {
      last = *std::ranges::max_element(done_, {}, [](const auto& d) { return *d; }).operator*();
      if (model_.all_gather) last += (model_.nodes - 1) * model_.transfer();
    }
    outcome_.time = last - Instant();
    for (auto& of_chunk : places_) {
      for (auto& place : of_chunk) outcome_.late |= place ? place->hop.late() : 0;
    }
    return std::move(outcome_);
  }

 private:
  size_t At(uint32_t node, uint32_t chunk) const { return size_t{node} * model_.nodes + chunk; }

  void Take(uint32_t position, uint32_t chunk, std::vector<Deadlines>& deadlines) {
    const uint8_t node = orders_[chunk].nodes[position];
    of_hops_.push_back({orders_[chunk], node, position, model_.policy, &deadlines[node], model_.transfer()});
    RingHop hop(&of_hops_.back(), Instant());
    if (!hop.NextTimeout().IsInfinite()) Push(hop.NextTimeout() - Instant(), What::kDeadline, node, chunk);
    places_[chunk][node].emplace(Place{std::move(hop), Parts(model_.nodes)});
  }

  void Push(Duration at, What what, uint32_t node, uint32_t chunk) {
    events_.push({Instant() + at, what, number_++, node, chunk});
  }

  Parts OwnPart(uint32_t node) const {
    Parts part(model_.nodes);
    part[node] = 1;
    return part;
  }

  void Send(Instant now, uint32_t from, uint32_t chunk, uint32_t position, const Partial& says,
            const Parts& holds) {
    outcome_.sent.push_back({chunk, says, holds});
    const uint32_t to = orders_[chunk].nodes[position];
    const int copies = random_.Chance(load_.duplicates) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      const auto extra = Duration(Saturated(random_.Uniform() * static_cast<double>(load_.jitter.count())));
      events_.push(
          {now + model_.transfer() + extra, What::kMessage, number_++, to, chunk, from, says, holds});
    }
  }

  void Handle(const Event& e) {
    auto& place = places_[e.chunk][e.node];
    switch (e.what) {
      case What::kOwn:
        if (!place)
          return Send(e.at, e.node, e.chunk, orders_[e.chunk].owner(), {Bit(e.node), 0}, OwnPart(e.node));
        Take(e, *place, place->hop.OnOwn(e.at), {Bit(e.node), 0}, OwnPart(e.node));
        break;
      case What::kMessage:
        Take(e, *place, place->hop.OnPartial(e.at, e.from, e.says), e.says, e.holds);
        break;
      case What::kMade:
        Send(e.at, e.node, e.chunk, place->hop.Close(e.at), place->says, place->sum);
        break;
      case What::kDeadline:
        break;
    }
    Advance(e.at, e.node, e.chunk, *place);
  }

  void Take(const Event& e, Place& place, Arrival arrival, const Partial& says, const Parts& holds) {
    switch (arrival) {
      case Arrival::kMerge:
        AddTo(place.sum, holds);
        ++place.merged;
        break;
      case Arrival::kPassOn: {
        // A late part of this node's own goes to the owner: no node before that waits for it.
        const bool own = e.what == What::kOwn;
        outcome_.passed_on += own ? 0 : 1;
        Send(e.at, e.node, e.chunk, own ? orders_[e.chunk].owner() : place.hop.Aim(e.at), says, holds);
        break;
      }
      case Arrival::kDuplicate:
        ++outcome_.duplicates;
        break;
      case Arrival::kOverlap:
        ++outcome_.overlaps;
        break;
      case Arrival::kNotice:
      case Arrival::kNoPlace:
      case Arrival::kNoRule:
        break;
    }
  }

  void Advance(Instant now, uint32_t node, uint32_t chunk, Place& place) {
    if (!done_[chunk] && place.hop.Complete()) {
      done_[chunk] = now;
      outcome_.at_owner[chunk] = place.sum;
    }
    if (!place.hop.Due(now)) return;
    const bool timed_out = now >= place.hop.NextTimeout();
    place.says = place.hop.Begin(now);
    Instant made = now;
    // What a node that gave up has alone is sent at once.
    if (place.merged > 1 || (place.merged == 1 && !timed_out)) {
      if (model_.one_engine) made = std::max(made, free_[node]);
      made += model_.reduce_time + load_.slow[At(node, chunk)];
      free_[node] = made;
    }
    events_.push({made, What::kMade, number_++, node, chunk});
  }

  const RingModel& model_;
  const RingLoad& load_;
  Random random_;
  std::vector<RingOrder> orders_;  // by chunk
  std::vector<RingPlace> of_hops_;
  std::vector<std::vector<std::optional<Place>>> places_;  // by chunk and node; none: a leaf
  std::vector<Instant> free_;                              // by node: its engine's
  std::vector<std::optional<Instant>> done_;               // by chunk
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t number_ = 0;
  RingOutcome outcome_;
};

}  // namespace

RingLoad RingLoad::Slow(uint32_t nodes, uint32_t node, uint32_t chunk, Duration extra) {
  RingLoad load(nodes);
  load.slow[size_t{node} * nodes + chunk] = extra;
  return load;
}

RingLoad RingLoad::AlwaysSlow(uint32_t nodes, uint32_t node, Duration extra) {
  RingLoad load(nodes);
  std::fill_n(load.slow.begin() + static_cast<std::ptrdiff_t>(size_t{node} * nodes), nodes, extra);
  return load;
}

RingLoad RingLoad::LateHost(uint32_t nodes, uint32_t node, Duration late) {
  RingLoad load(nodes);
  std::fill_n(load.host.begin() + static_cast<std::ptrdiff_t>(size_t{node} * nodes), nodes, late);
  return load;
}

RingSim::RingSim(const RingModel& model) : model_(model) {
  for (uint32_t node = 0; node < model.nodes; ++node) {
    deadlines_.push_back(model.alpha > 0 ? Deadlines::Fixed(model.reduce_time, model.alpha, model.transfer())
                                         : Deadlines());
  }
}

RingOutcome RingSim::Run(const RingLoad& load) {
  const Contributors leaves = model_.policy == RingPolicy::kLeafDemote ? demotion_.leaves() : 0;
  RingOutcome outcome = Round(model_, load, leaves, deadlines_).Run();
  if (model_.policy == RingPolicy::kLeafDemote) {
    demotion_.OnRound(model_.nodes == kMaxRingNodes ? ~Contributors{0} : Bit(model_.nodes) - 1, outcome.late);
  }
  return outcome;
}

void RingSim::Learn(uint32_t rounds, Duration jitter, uint64_t seed) {
  RingModel all = model_;
  all.all_chunks = true;
  for (uint32_t i = 0; i < rounds; ++i) {
    RingLoad load(model_.nodes);
    load.jitter = jitter;
    load.seed = seed + i;
    (void)Round(all, load, 0, deadlines_).Run();
  }
}

}  // namespace longhaul::offload::ringsim
