// The answers that a client has to its first flight, until one of them has proved to be the server's. With
// certificates the key of long packets is public: any host that sees an INIT can send an ACCEPT, faster than
// the server. So each answer has a handshake of its own, of the same ClientHello (HandshakeCrypto::Again),
// and one that fails is noise.
//
// An answer is what comes with one source connection ID and one set of transport parameters: both are in what
// the keys are made from, so a forger that adds to the server's answer must not change them.
//
// Not thread-safe; lives inside one connection.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "base/token_bucket.h"
#include "proto/frames.h"
#include "proto/packet_header.h"
#include "transport/core/connection/handshake.h"

namespace longhaul::transport {

class ServerAnswers {
 public:
  // At once; the oldest makes room. The server's needs its place from its first packet to its last, which
  // come one behind the other.
  static constexpr size_t kMaxAnswers = 8;
  // New ones per second, a tenth of that at once: each costs a TLS session, 0.1 ms, so a flood of them costs
  // a joining client a tenth of a core.
  static constexpr double kPerSecond = 1000;

  struct Answer {
    wire::ConnectionId remote;
    wire::TransportParametersFrame parameters;
    std::unique_ptr<Handshake> handshake;
    int64_t largest_datagram = 0;
  };

  // The answer that such a packet belongs to; null: one too many. `first`: the handshake that they all
  // continue.
  Answer* Of(Instant now, const Handshake& first, wire::ConnectionId remote,
             const wire::TransportParametersFrame& parameters);
  // It has failed. From now on answers keep nothing beyond a gap: what a forger puts there in advance would
  // spoil the server's answer each time it comes.
  void Drop(const Answer* answer);
  // It is the server's: the others are forgotten.
  Answer Choose(Answer* answer);
  bool empty() const { return answers_.empty(); }

  // The one with something to send; null: none.
  Answer* Sender();
  Instant Deadline() const;
  void OnTimeout(Instant now);

 private:
  std::vector<std::unique_ptr<Answer>> answers_;
  TokenBucket rate_{kPerSecond, kPerSecond / 10};
  bool in_order_ = false;
};

}  // namespace longhaul::transport
