#include "tests/sim/virtual_network.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace longhaul::wan {

VirtualNetwork::VirtualNetwork(Options options) : options_(std::move(options)) {
  LH_CHECK(options_.link.Validate().ok());
  LH_CHECK(options_.local_link.Validate().ok());
}

VirtualNetwork::SiteId VirtualNetwork::AddSite(std::string name) {
  sites_.push_back(std::move(name));
  return static_cast<SiteId>(sites_.size() - 1);
}

void VirtualNetwork::Attach(const Address& address, SiteId site, Host* host) {
  LH_CHECK(host != nullptr);
  LH_CHECK_OP(site, <, sites_.size());
  hosts_[address] = {site, host};
}

void VirtualNetwork::Detach(const Address& address) { hosts_.erase(address); }

LinkModel& VirtualNetwork::Link(SiteId from, SiteId to) {
  LH_CHECK_OP(from, <, sites_.size());
  LH_CHECK_OP(to, <, sites_.size());
  const auto found = links_.find({from, to});
  if (found != links_.end()) return found->second;
  // A generator of the pair, not of the order in which links are first used.
  Random random = Random(options_.seed).Fork((uint64_t{from} << 32 | to) + 1);
  const LinkOptions& options = from == to ? options_.local_link : options_.link;
  return links_.emplace(std::pair(from, to), LinkModel(options, random)).first->second;
}

void VirtualNetwork::SetLink(SiteId from, SiteId to, const LinkOptions& options) {
  Link(from, to).SetOptions(options);
}

void VirtualNetwork::SetLinkBothWays(SiteId a, SiteId b, const LinkOptions& options) {
  SetLink(a, b, options);
  SetLink(b, a, options);
}

void VirtualNetwork::SetEcnRule(SiteId from, SiteId to, EcnRule rule) {
  ecn_rules_[{from, to}] = std::move(rule);
}

void VirtualNetwork::Send(const Address& from, const Address& to, ByteSpan datagram, Ecn ecn) {
  ++counters_.datagrams_sent;
  Log(Happening::kSend, datagram.size());
  LogAddress(from);
  LogAddress(to);
  LogBytes(datagram);
  const auto sender = hosts_.find(from);
  const auto receiver = hosts_.find(to);
  if (sender == hosts_.end() || receiver == hosts_.end()) {
    ++counters_.unreachable;
    Log(Happening::kUnreachable, 0);
    return;
  }
  const std::pair sites(sender->second.site, receiver->second.site);
  LinkModel& link = Link(sites.first, sites.second);
  const auto rule = ecn_rules_.find(sites);
  if (rule != ecn_rules_.end() && rule->second) ecn = rule->second(now_, ecn, link.QueueDelay(now_));
  SendOver(link, from, to, datagram, ecn);
}

void VirtualNetwork::SendOver(LinkModel& link, const Address& from, const Address& to, ByteSpan datagram,
                              Ecn ecn) {
  const ByteCount wire_size = ByteCount(static_cast<int64_t>(datagram.size())) + options_.overhead;
  const Verdict verdict = link.Decide(now_, wire_size);
  if (verdict.dropped != DropReason::kNone) Log(Happening::kDrop, static_cast<uint64_t>(verdict.dropped));
  for (const Delivery& delivery : verdict.deliveries()) {
    if (IsFull()) {
      ++counters_.dropped_event_bound;
      Log(Happening::kDrop, 255);
      continue;
    }
    Event& event = Push(delivery.time);
    event.from = from;
    event.to = to;
    event.bytes.assign(datagram.begin(), datagram.end());
    event.ecn = ecn;
    // A flipped bit in the imagined headers would be dropped by IP or UDP; here it hits the payload instead.
    if (delivery.corrupted && !event.bytes.empty()) {
      const uint64_t bit = delivery.corrupt_bit % (8 * event.bytes.size());
      event.bytes[bit / 8] = static_cast<uint8_t>(event.bytes[bit / 8] ^ (1u << (bit % 8)));
    }
  }
}

bool VirtualNetwork::Schedule(Instant at, std::function<void()> action) {
  LH_CHECK(action != nullptr);
  if (IsFull()) {
    ++counters_.refused_timers;
    return false;
  }
  Push(std::max(at, now_)).action = std::move(action);
  return true;
}

VirtualNetwork::Event& VirtualNetwork::Push(Instant at) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  heap_.push_back({at, next_sequence_++, slot});
  std::ranges::push_heap(heap_, std::greater<>());
  return slots_[slot];
}

bool VirtualNetwork::Step() {
  if (heap_.empty()) return false;
  std::ranges::pop_heap(heap_, std::greater<>());
  const Key key = heap_.back();
  heap_.pop_back();
  now_ = std::max(now_, key.time);
  ++counters_.events_run;
  // Out of the slot first: the callback may push and so move the slots.
  Event event = std::move(slots_[key.slot]);
  slots_[key.slot].action = nullptr;
  if (event.action) {
    free_slots_.push_back(key.slot);
    Log(Happening::kTimer, key.sequence);
    event.action();
    return true;
  }
  Arrive(event);
  slots_[key.slot].bytes = std::move(event.bytes);  // keeps its memory for the next datagram
  free_slots_.push_back(key.slot);
  return true;
}

void VirtualNetwork::Arrive(Event& event) {
  const auto receiver = hosts_.find(event.to);
  if (receiver == hosts_.end()) {
    ++counters_.unreachable;
    Log(Happening::kUnreachable, 1);
    return;
  }
  ++counters_.datagrams_delivered;
  Log(Happening::kArrive, event.bytes.size());
  LogAddress(event.to);
  LogBytes(event.bytes);
  receiver->second.host->OnEcnDatagram(now_, event.from, event.bytes, event.ecn);
}

void VirtualNetwork::RunUntil(Instant until) {
  while (!heap_.empty() && heap_.front().time <= until) Step();
  now_ = std::max(now_, until);
}

Instant VirtualNetwork::NextEventTime() const {
  return heap_.empty() ? Instant::Infinite() : heap_.front().time;
}

void VirtualNetwork::Note(uint64_t value) { Log(Happening::kNote, value); }

void VirtualNetwork::Log(Happening what, uint64_t value) {
  Mix(static_cast<uint64_t>(what));
  Mix(static_cast<uint64_t>(now_.nanoseconds()));
  Mix(value);
}

void VirtualNetwork::LogAddress(const Address& address) {
  uint64_t words[2];
  std::memcpy(words, address.ip.data(), sizeof words);
  Mix(words[0]);
  Mix(words[1]);
  Mix(address.port);
}

// FNV-1a over 64-bit words instead of bytes: eight times faster, and no secret depends on it.
void VirtualNetwork::LogBytes(ByteSpan bytes) {
  size_t at = 0;
  for (uint64_t word = 0; at + sizeof word <= bytes.size(); at += sizeof word) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
    Mix(word);
  }
  for (; at < bytes.size(); ++at) Mix(bytes[at]);
}

}  // namespace longhaul::wan
