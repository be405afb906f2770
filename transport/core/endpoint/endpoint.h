// A set of connections behind one UDP address: finds the connection of a datagram by its connection ID,
// accepts or refuses new ones, polls all of them fairly. A DatagramCore: sockets, simulator and fuzzer drive
// it, and after every Handle* the owner polls what happened:
//
//   endpoint.HandleDatagram(now, from, datagram, info);
//   while (auto happened = endpoint.PollEvent()) ...  // requests to any connection are welcome here
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "transport/core/connection/connection.h"
#include "transport/core/connection/events.h"
#include "transport/core/datagram_core.h"
#include "transport/core/endpoint/admission.h"
#include "transport/core/security/security.h"

namespace longhaul::transport {

struct EndpointOptions {
  ConnectionOptions connection;
  bool accepts = false;             // a server
  uint32_t max_connections = 1024;  // more are refused by name
  // Handshakes and keys; must outlive the endpoint. Null: none (NullSecurity). See SetKeys.
  Security* security = nullptr;
  AdmissionOptions admission;            // a server's, with security
  codec::ErasureCoder* coder = nullptr;  // must outlive the endpoint; null: windows with FEC are refused
};

// What happened, and on which connection; null for event::HandshakeFailed.
struct EndpointEvent {
  Connection* connection = nullptr;
  Event event;
};

// Drops and refusals that belong to no connection.
struct EndpointStats {
  uint64_t datagrams_received = 0;
  uint64_t unknown_connection_dropped = 0;
  uint64_t malformed_dropped = 0;
  uint64_t not_authentic_dropped = 0;
  uint64_t late_long_dropped = 0;
  uint64_t version_refused = 0;
  uint64_t capacity_refused = 0;
  uint64_t accepted = 0;
  uint64_t handshakes_failed = 0;
  uint64_t half_open_refused = 0;
  uint64_t inits_limited = 0;
  uint64_t failures_limited = 0;
  uint64_t retries_sent = 0;
  uint64_t retries_limited = 0;
  uint64_t cookies_refused = 0;
  uint64_t resets_sent = 0;
  uint64_t resets_limited = 0;
  uint64_t resets_received = 0;
  uint64_t refusals_sent = 0;
  uint64_t refusals_limited = 0;
  uint64_t half_open = 0;
  uint64_t stateless_dropped = 0;
};

inline constexpr Counter<EndpointStats> kEndpointCounters[] = {
    {&EndpointStats::datagrams_received, "datagrams_received", "datagrams received"},
    {&EndpointStats::unknown_connection_dropped, "unknown_connection_dropped",
     "of no connection that is known"},
    {&EndpointStats::malformed_dropped, "malformed_dropped", "datagrams that cannot be parsed"},
    {&EndpointStats::not_authentic_dropped, "not_authentic_dropped",
     "long packets whose tag does not fit: damaged, or sent without the key"},
    {&EndpointStats::late_long_dropped, "late_long_dropped",
     "long packets of a connection that has long had its handshake"},
    {&EndpointStats::version_refused, "version_refused", "INITs of another version"},
    {&EndpointStats::capacity_refused, "capacity_refused", "INITs beyond the number of connections"},
    {&EndpointStats::accepted, "accepted", "connections accepted"},
    {&EndpointStats::handshakes_failed, "handshakes_failed",
     "key exchanges that failed or were not finished in time, and INITs of another version or key, each time "
     "they come"},
    {&EndpointStats::half_open_refused, "half_open_refused",
     "INITs that found too many handshakes under way"},
    {&EndpointStats::inits_limited, "inits_limited", "INITs beyond what their address may begin"},
    {&EndpointStats::failures_limited, "failures_limited",
     "packets not even opened: too many of the kind did not open"},
    {&EndpointStats::retries_sent, "retries_sent", "RETRY with a cookie"},
    {&EndpointStats::retries_limited, "retries_limited", "RETRY not sent: too many"},
    {&EndpointStats::cookies_refused, "cookies_refused",
     "cookies of INITs: forged, of another address, or too old"},
    {&EndpointStats::resets_sent, "resets_sent", "stateless resets sent"},
    {&EndpointStats::resets_limited, "resets_limited", "stateless resets not sent: too many"},
    {&EndpointStats::resets_received, "resets_received", "connections ended by a stateless reset"},
    {&EndpointStats::refusals_sent, "refusals_sent", "REFUSE sent"},
    {&EndpointStats::refusals_limited, "refusals_limited", "REFUSE not sent: too many"},
    {&EndpointStats::half_open, "half_open", "handshakes under way now", CounterKind::kState},
    {&EndpointStats::stateless_dropped, "stateless_dropped",
     "answers without a connection, beyond the bound of their queue"},
};

class Endpoint : public DatagramCore {
 public:
  Endpoint(EndpointOptions options, Random random);
  ~Endpoint() override;

  // event::HandshakeFailed that wait to be polled.
  static constexpr size_t kMaxFailures = 64;

  // Starts a connection towards `server`. The pointer is valid until the first Handle* after its
  // event::Closed was polled.
  Connection* Connect(Instant now, const Address& server);
  // The keys from now on, instead of those before: a client's connections are made under the first, a
  // server's under the one that opens their INIT, and answers without a connection are sealed with the first.
  // Connections that are there keep theirs. REQUIRES: at least one, all of them secure, as was the one
  // before.
  void SetKeys(std::vector<std::shared_ptr<Security>> keys);
  // The next event; per connection in the order in which they came. nullopt: none waits. To be called until
  // then after every Handle*, before the next one; requests cause none but event::Closed, which may wait.
  std::optional<EndpointEvent> PollEvent();
  // Closes every connection, telling the peers.
  void CloseAll(const Status& why);
  size_t connection_count() const;
  EndpointStats stats() const;

  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override;
  void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) override;
  std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override;
  Instant NextTimeout() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::transport
