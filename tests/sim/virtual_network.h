// A whole WAN in one thread and in virtual time: hosts at sites, one LinkModel per ordered pair of sites, and
// an event queue. The same seed and the same calls give the same events in the same order, and so the same
// event_log_hash(); nothing here reads a clock.
//
//   host --Send()--> LinkModel(site -> site) --event at the arrival--> OnDatagram() --> host
//
// Not thread-safe. Callbacks may call every method except RunUntil(), RunFor() and Step().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "base/instant.h"
#include "wan/link_model.h"

namespace longhaul::wan {

// The two bits of an IP header (RFC 3168 §5).
enum class Ecn : uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };

class VirtualNetwork {
 public:
  // What the routers of a link make of the bits: `queue` is how long the datagram will wait in front of the
  // rate.
  using EcnRule = std::function<Ecn(Instant now, Ecn ecn, Duration queue)>;

  // The owner of an address.
  class Host {
   public:
    virtual ~Host() = default;
    // A datagram arrived; the bytes may be changed in place and are gone after the call.
    virtual void OnDatagram(Instant now, const Address& from, MutableByteSpan datagram) = 0;
    // What the network calls: for hosts that want to know the bits as well.
    virtual void OnEcnDatagram(Instant now, const Address& from, MutableByteSpan datagram, Ecn ecn) {
      (void)ecn;
      OnDatagram(now, from, datagram);
    }
  };
  using SiteId = uint32_t;

  struct Options {
    uint64_t seed = 1;
    // Between different sites where SetLink() said nothing else.
    LinkOptions link = {};
    // Inside one site; by default without loss and delay.
    LinkOptions local_link = {};
    // Events pending at once; a datagram beyond is dropped, a Schedule() beyond refused; both are counted.
    size_t max_pending_events = size_t{1} << 20;
    // Added to every datagram for rate, queue and mtu, so that figures agree with real IP links (IPv4 + UDP).
    ByteCount overhead = ByteCount(28);
  };

  struct Counters {
    uint64_t datagrams_sent = 0;
    uint64_t datagrams_delivered = 0;
    uint64_t unreachable = 0;          // no host at the address when it was sent or when it arrived
    uint64_t dropped_event_bound = 0;  // datagrams that max_pending_events refused
    uint64_t refused_timers = 0;       // Schedule() calls that max_pending_events refused
    uint64_t events_run = 0;
  };

  // REQUIRES: both links are valid.
  explicit VirtualNetwork(Options options);

  // Sites are numbered 0, 1, ... in the order of these calls.
  SiteId AddSite(std::string name);
  const std::string& SiteName(SiteId site) const { return sites_[site]; }

  // The host must outlive its address here. Attaching an address again moves it (a restarted process, a
  // rebound NAT); datagrams in flight reach the address's owner at their arrival. Also switches on.
  void Attach(const Address& address, SiteId site, Host* host);
  void Detach(const Address& address);

  // One direction. The model keeps its counters and queue when its options change.
  void SetLink(SiteId from, SiteId to, const LinkOptions& options);
  void SetLinkBothWays(SiteId a, SiteId b, const LinkOptions& options);
  // One direction; null: the bits pass as they are.
  void SetEcnRule(SiteId from, SiteId to, EcnRule rule);
  // Made on first use.
  LinkModel& Link(SiteId from, SiteId to);

  // Sends at now(). Unknown addresses are counted and forgotten, as on a real network.
  void Send(const Address& from, const Address& to, ByteSpan datagram, Ecn ecn = Ecn::kNotEct);

  // Runs `action` at `at` (or at now() when that has passed). Equal times run in the order of the calls.
  // There is no cancelling: let the action look whether it is still wanted. False: the bound is reached.
  bool Schedule(Instant at, std::function<void()> action);

  // Runs one event; false when none is pending.
  bool Step();
  // Runs every event up to and including `until`, then now() is `until`.
  void RunUntil(Instant until);
  void RunFor(Duration time) { RunUntil(now_ + time); }

  Instant now() const { return now_; }
  Instant NextEventTime() const;
  size_t pending_events() const { return heap_.size(); }
  const Counters& counters() const { return counters_; }

  // FNV-1a over everything that happened: who, when, to whom, which bytes, which fate.
  uint64_t event_log_hash() const { return hash_; }
  // Lets a simulation add its own happenings to the hash.
  void Note(uint64_t value);

 private:
  struct Event {
    std::function<void()> action;  // a timer when set, otherwise a datagram
    Address from;
    Address to;
    std::vector<uint8_t> bytes;
    Ecn ecn = Ecn::kNotEct;
  };
  // Ordered by time, then by the order of the calls.
  struct Key {
    Instant time;
    uint64_t sequence = 0;
    uint32_t slot = 0;
    bool operator>(const Key& o) const { return time != o.time ? time > o.time : sequence > o.sequence; }
  };
  struct Attachment {
    SiteId site = 0;
    Host* host = nullptr;
  };
  enum class Happening : uint8_t { kSend = 1, kDrop, kArrive, kUnreachable, kTimer, kNote };

  bool IsFull() const { return heap_.size() >= options_.max_pending_events; }
  Event& Push(Instant at);
  void SendOver(LinkModel& link, const Address& from, const Address& to, ByteSpan datagram, Ecn ecn);
  void Arrive(Event& event);
  void Log(Happening what, uint64_t value);
  void LogAddress(const Address& address);
  void LogBytes(ByteSpan bytes);
  void Mix(uint64_t word) { hash_ = (hash_ ^ word) * 1099511628211ull; }

  Options options_;
  std::vector<std::string> sites_;
  std::unordered_map<Address, Attachment> hosts_;
  std::map<std::pair<SiteId, SiteId>, LinkModel> links_;
  std::map<std::pair<SiteId, SiteId>, EcnRule> ecn_rules_;
  std::vector<Key> heap_;  // a min-heap
  std::vector<Event> slots_;
  std::vector<uint32_t> free_slots_;
  uint64_t next_sequence_ = 0;
  Instant now_;
  Counters counters_;
  uint64_t hash_ = 1469598103934665603ull;
};

}  // namespace longhaul::wan
