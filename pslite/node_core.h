// A node of a ps-lite job without sockets, clock and threads: joins, sends and receives messages, meets
// others in barriers, leaves; and fails as a whole when one of its peers does.
//
//   every other node ──────> scheduler      numbers, addresses of servers, barriers
//   worker ────────────────> every server   requests and responses
//
// The scheduler and servers accept connections, all by the one socket that a node has; so where the scheduler
// sees a server is where workers reach it. A message whose sender is not the one that the connection's first
// message names ends the job. Drive it like any DatagramCore, in one thread; hooks are called in it, and may
// call nothing here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "codec/fec/erasure_coder.h"
#include "pslite/message.h"
#include "pslite/pipe.h"
#include "transport/core/datagram_core.h"
#include "transport/core/endpoint/endpoint.h"

namespace longhaul::pslite {

struct NodeOptions {
  Role role = Role::kWorker;
  uint32_t workers = 1;
  uint32_t servers = 1;
  Address scheduler;
  std::optional<Address> address;  // see Hello
  transport::ConnectionOptions connection;
  transport::Security* security = nullptr;
  // For a peer to answer at all, again and again; for a customer that a request is for to be made.
  Duration connect_timeout = std::chrono::seconds(60);
  Duration wait_timeout = std::chrono::minutes(30);  // the scheduler's, for all to come; zero: for ever
};

// A request that a customer has; to be handed back (Taken) when it was handled.
struct Ticket {
  uint64_t peer = 0;  // 0: there is nothing to hand back
  uint32_t window = 0;
};

struct NodeHooks {
  // All nodes are there: this process' numbers.
  std::function<void(const std::vector<Welcome::Own>&)> on_started;
  // False: there is no such customer; asked again after Retry.
  std::function<bool(const ps::Message&, const Ticket&)> on_message;
  std::function<void(const Barrier&)> on_released;
  // A message of Send is no longer held: its Bytes::cost.
  std::function<void(size_t)> on_sent;
  // Nothing comes after one of these two. The peers have been told.
  std::function<void(const Status&)> on_failed;
  std::function<void()> on_left;
};

class NodeCore final : public transport::DatagramCore {
 public:
  NodeCore(NodeOptions options, NodeHooks hooks, codec::ErasureCoder* coder, Random random);
  ~NodeCore() override;

  // --- Requests ---
  // One customer's Start.
  void Join(Instant now, uint32_t customer);
  // `message`: an encoded ps::Message. REQUIRES: on_started was called.
  void Send(uint32_t receiver, Bytes message, bool request);
  void Enter(const Barrier& barrier);
  void Taken(const Ticket& ticket);
  // A customer was made.
  void Retry();
  // Ends in order, when all that was sent has arrived.
  void Leave();
  void Fail(const Status& why);

  // --- DatagramCore ---
  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override;
  void HandleTimeout(Instant now) override;
  void HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) override;
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override;
  Instant NextTimeout() const override;
  bool HasWork() const override;
  void Work(Instant now) override;

 private:
  struct Peer {
    Peer(transport::Connection* c, uint64_t number) : connection(c), serial(number), pipe(c) {}
    transport::Connection* connection;
    uint64_t serial;
    Pipe pipe;
    std::vector<uint32_t> ids;  // none: a stranger
    bool ours = false;          // we have called it
    bool connected = false;
    bool bye = false;         // it has left
    uint64_t unanswered = 0;  // requests
    std::string name;         // for people
  };
  struct Slot {
    Peer* peer = nullptr;  // null: this process
    uint32_t customer = 0;
    Hello hello;
  };

  void Connect(const Address& to, uint32_t id);
  void Drain();
  void Handle(transport::Connection* connection, const transport::Event& event);
  void OnClosed(Peer& peer, const Status& why);
  void OnConnected(Peer& peer);
  void Deliver(Peer& peer);
  Status Take(Peer& peer, uint32_t window, Decoded& message, bool* held);
  Status OnHello(Peer& peer, const Hello& hello);
  Status OnGreeting(Peer& peer, const Greeting& greeting);
  Status OnWelcome(Peer& peer, const Welcome& welcome);
  Status OnData(Peer& peer, uint32_t window, const ps::Message& message, bool* held);
  void OnBye(Peer& peer);
  void Seat(const Slot& slot);
  void StartAll();
  void CheckStarted();
  void DeliverLocal();
  void DeliverAll();
  void CheckBarriers();
  void Released(const Barrier& barrier);
  void CheckLeft();
  void Advance();
  void Refuse(Peer& peer, const Status& why);
  std::string Missing() const;
  uint32_t Expected(Role role) const { return role == Role::kServer ? options_.servers : options_.workers; }

  const NodeOptions options_;
  const NodeHooks hooks_;
  Instant now_;
  std::unordered_map<transport::Connection*, std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Peer>> gone_;  // until the next event: what they have lent
  std::map<uint32_t, Peer*> by_id_;
  std::set<uint32_t> left_;
  uint64_t next_serial_ = 1;
  std::vector<uint32_t> customers_;  // of this process, that have joined
  std::vector<Slot> slots_;          // the scheduler's: the nodes that have come
  std::vector<Welcome::Own> own_;
  bool welcomed_ = false;
  bool started_ = false;
  bool deliver_all_ = false;                                  // what came before the start
  std::deque<Bytes> local_;                                   // from this node to itself
  std::map<uint32_t, std::map<uint32_t, Barrier>> barriers_;  // the scheduler's: by group and number
  Instant connect_deadline_ = Instant::Infinite();
  Instant start_deadline_ = Instant::Infinite();
  Instant held_deadline_ = Instant::Infinite();  // of a request that waits for its customer
  std::string held_;                             // for people
  bool leaving_ = false;                         // or all are: a peer that ends is no failure
  bool said_bye_ = false;
  bool closed_ = false;  // all connections, at the end of Leave
  bool over_ = false;    // on_failed or on_left
  std::optional<Status> failed_;
  transport::Endpoint endpoint_;
};

}  // namespace longhaul::pslite
