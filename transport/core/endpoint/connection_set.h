// The connections of an endpoint: found by connection ID or by initiator, served in turn, and taken out
// when they are over. However many there are, an event costs as much as those that it concerns.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/instant.h"
#include "base/random.h"
#include "proto/packet_header.h"
#include "transport/core/connection/connection_impl.h"

namespace longhaul::transport {

class ConnectionSet {
 public:
  // A connection with a local ID of its own. `options`, `security` and `coder` as ConnectionImpl takes them;
  // a server's is also found by its initiator: the client's address and connection ID.
  ConnectionImpl* Add(Instant now, bool is_client, wire::ConnectionId remote, const Address& peer,
                      const ConnectionOptions& options, const std::shared_ptr<Security>& security,
                      codec::ErasureCoder* coder, Random* random);
  // Null: there is none.
  ConnectionImpl* Find(wire::ConnectionId id) const;
  ConnectionImpl* FindInitiator(const Address& from, wire::ConnectionId source) const;
  // REQUIRES: Find(id).
  std::unique_ptr<ConnectionImpl> Remove(wire::ConnectionId id);
  // Those that have events, in the order of the first one that waits. Out again when PollEvent has returned
  // nullopt.
  std::vector<ConnectionImpl*>& ready() { return attention_.ready; }
  // Of the connection whose turn it is, of those that have anything to send.
  std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan buffer);
  // The first of all; Infinite(): none.
  Instant NextTimeout();
  // Those whose time-out has come, in its order.
  std::vector<ConnectionImpl*> Due(Instant now);

  size_t size() const { return all_.size(); }
  // In the order in which they were added.
  const std::vector<wire::ConnectionId>& ids() const { return order_; }
  // In no order; the set must not change meanwhile.
  template <typename Function>
  void ForEach(Function function) const {
    for (const auto& [id, connection] : all_) function(*connection);
  }

 private:
  // Time-out, and the number of its connection.
  using Timeout = std::pair<Instant, uint64_t>;
  // Time-outs are as their connections say.
  void TakeMoved();

  Attention attention_;
  std::unordered_map<wire::ConnectionId, std::unique_ptr<ConnectionImpl>> all_;
  std::map<std::pair<Address, uint64_t>, wire::ConnectionId> by_initiator_;
  std::vector<wire::ConnectionId> order_;        // the same as in all_
  std::map<Timeout, ConnectionImpl*> timeouts_;  // likewise
  uint64_t added_ = 0;
};

}  // namespace longhaul::transport
