// What an endpoint says without a connection: REFUSE, RETRY, stateless resets, and the last words of a
// connection that is gone. All that is kept is the datagrams themselves until they leave, so many at most;
// each is shorter than what asked for it, and each kind has a rate (admission.h): strangers can make us send
// it to any address.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "base/instant.h"
#include "base/random.h"
#include "longhaul/status.h"
#include "proto/packet_header.h"
#include "transport/core/datagram_core.h"
#include "transport/core/endpoint/admission.h"
#include "transport/core/endpoint/endpoint.h"
#include "transport/core/security/security.h"

namespace longhaul::transport {

// An INIT that begins something is at least this long; shorter ones are dropped.
inline constexpr size_t kMinInitBytes = 1200;

class StatelessAnswers {
 public:
  // Datagrams that wait; more are dropped and counted.
  static constexpr size_t kMaxWaiting = 64;

  using Keys = std::vector<std::shared_ptr<Security>>;

  // All of them the endpoint's; they must outlive this. keys: at least one.
  StatelessAnswers(const Keys* keys, Admission* admission, Random* random, EndpointStats* stats)
      : keys_(keys), admission_(admission), random_(random), stats_(stats) {}

  // Refuses an INIT that begins something, unless there were too many refusals. kPermissionDenied: it was not
  // opened.
  void Refuse(Instant now, const Address& to, const wire::LongHeader& init, StatusCode code,
              std::string_view reason);
  // Asks for the INIT again with a cookie, unless there were too many RETRYs. opened: by that key; null: it
  // was not, and is asked for under each key. False: this security has no cookies.
  bool Retry(Instant now, const Address& to, const wire::LongHeader& init, Security* opened);
  // Says that there is no connection `id` (any more), to the sender of a short packet of so many bytes;
  // nothing without keys, or when the packet is too short for a shorter answer, or when there were too many
  // resets.
  void Reset(Instant now, const Address& to, wire::ConnectionId id, size_t packet_bytes);
  // A datagram that is complete.
  void Send(const Address& to, std::vector<uint8_t> bytes);

  // As DatagramCore::PollTransmit.
  std::optional<Transmit> Poll(MutableByteSpan buffer);

 private:
  struct Datagram {
    Address to;
    std::vector<uint8_t> bytes;
  };

  Security& first() const { return *keys_->front(); }
  uint64_t Unpredictable() { return first().Unpredictable(random_->Next()); }
  void SendRetry(Security& key, const wire::LongHeader& init, const Cookie& cookie, const Address& to);

  const Keys* keys_;
  Admission* admission_;
  Random* random_;
  EndpointStats* stats_;
  std::deque<Datagram> waiting_;
};

}  // namespace longhaul::transport
