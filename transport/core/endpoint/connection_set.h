// The connections of an endpoint: found by connection ID or by initiator, served in turn, and taken out
// when they are over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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
  // Those that have events, in the order of the first one that waits; see ConnectionImpl.
  std::vector<ConnectionImpl*>& ready() { return ready_; }

  size_t size() const { return all_.size(); }
  // In the order in which they were added.
  const std::vector<wire::ConnectionId>& ids() const { return order_; }
  // Whose turn it is: every one of them once in size() calls. REQUIRES: size() > 0.
  ConnectionImpl& Next() { return *all_.at(order_[next_++ % order_.size()]); }
  // In no order; the set must not change meanwhile.
  template <typename Function>
  void ForEach(Function function) const {
    for (const auto& [id, connection] : all_) function(*connection);
  }

 private:
  std::vector<ConnectionImpl*> ready_;  // outlives them: they write to it
  std::unordered_map<wire::ConnectionId, std::unique_ptr<ConnectionImpl>> all_;
  std::map<std::pair<Address, uint64_t>, wire::ConnectionId> by_initiator_;
  std::vector<wire::ConnectionId> order_;  // the same as in all_
  size_t next_ = 0;
};

}  // namespace longhaul::transport
