// A set of connections behind one UDP address: finds the connection of a datagram by its connection ID,
// accepts or refuses new ones, polls all of them fairly. A DatagramCore: sockets, simulator and fuzzer drive
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/random.h"
#include "transport/core/admission.h"
#include "transport/core/connection.h"
#include "transport/core/datagram_core.h"
#include "transport/core/security.h"

namespace longhaul::transport {

struct EndpointOptions {
  ConnectionOptions connection;
  bool accepts = false;             // a server
  uint32_t max_connections = 1024;  // more are refused by name
  // Handshakes and keys; must outlive the endpoint. Null: none (NullSecurity).
  Security* security = nullptr;
  AdmissionOptions admission;            // a server's, with security
  codec::ErasureCoder* coder = nullptr;  // must outlive the endpoint; null: windows with FEC are refused
  // Called for an accepted connection before any of its events; with security once it is known who the peer
  // is. Returning null refuses it.
  std::function<ConnectionObserver*(Connection&)> on_accept;
  // A server's: somebody began a handshake and did not get through, and why
  // (EndpointStats::handshakes_failed). The address need not be his. As often as strangers like; must not
  // call the endpoint.
  std::function<void(const Address&, const Status&)> on_handshake_failed;
};

// Drops and refusals that belong to no connection.
struct EndpointStats {
  uint64_t datagrams_received = 0;
  uint64_t unknown_connection_dropped = 0;
  uint64_t malformed_dropped = 0;
  uint64_t not_authentic_dropped =
      0;  // long packets whose tag does not fit: damaged, or of somebody without the key
  uint64_t late_long_dropped = 0;  // long packets of a connection that has long had its handshake
  uint64_t version_refused = 0;
  uint64_t capacity_refused = 0;
  uint64_t accepted = 0;
  // Server: key exchanges that failed or were not finished in time, and INITs of another version or that do
  // not open (another key), each time they come.
  uint64_t handshakes_failed = 0;
  uint64_t half_open_refused = 0;  // INITs that found too many handshakes under way
  uint64_t inits_limited = 0;      // INITs beyond what their address may begin
  uint64_t failures_limited = 0;   // packets not even opened: too many of the kind did not open
  uint64_t retries_sent = 0;       // RETRY with a cookie
  uint64_t retries_limited = 0;    // not sent: too many
  uint64_t cookies_refused = 0;    // of INITs: forged, of another address, or too old
  uint64_t resets_sent = 0;        // stateless resets
  uint64_t resets_limited = 0;     // not sent: too many
  uint64_t resets_received = 0;    // connections ended by one
  uint64_t refusals_sent = 0;      // REFUSE
  uint64_t refusals_limited = 0;   // not sent: too many
  uint64_t half_open = 0;          // now
  uint64_t stateless_dropped = 0;  // answers without a connection, beyond the bound of their queue
};

class Endpoint : public DatagramCore {
 public:
  Endpoint(EndpointOptions options, Random random);
  ~Endpoint() override;

  // Starts a connection towards `server`; the observer must outlive it. The pointer is valid until OnClosed.
  Connection* Connect(Instant now, const Address& server, ConnectionObserver* observer);
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
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longhaul::transport
