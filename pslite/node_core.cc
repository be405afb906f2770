#include "pslite/node_core.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/units_text.h"

namespace longhaul::pslite {
namespace {

transport::EndpointOptions EndpointOptionsOf(const NodeOptions& options, codec::ErasureCoder* coder) {
  transport::EndpointOptions endpoint;
  endpoint.connection = options.connection;
  endpoint.connection.rate.max_datagram = options.connection.max_datagram;
  endpoint.connection.max_window_bytes = ByteCount(int64_t{kMaxMessageBytes} + (1 << 16));
  endpoint.accepts = options.role != Role::kWorker;
  endpoint.max_connections = 2 * kMaxNodes;
  endpoint.coder = coder;
  endpoint.security = options.security;
  return endpoint;
}

Status Violation(const std::string& what) { return {StatusCode::kProtocolViolation, what}; }

}  // namespace

NodeCore::NodeCore(NodeOptions options, NodeHooks hooks, codec::ErasureCoder* coder, Random random)
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      endpoint_(EndpointOptionsOf(options_, coder), random) {}

NodeCore::~NodeCore() = default;

// --- Start ---

void NodeCore::Join(Instant now, uint32_t customer) {
  now_ = now;
  if (over_ || failed_) return;
  customers_.push_back(customer);
  const Hello hello{options_.role, options_.workers, options_.servers, customer, options_.address};
  if (options_.role == Role::kScheduler) {
    if (options_.wait_timeout > Duration(0)) start_deadline_ = now_ + options_.wait_timeout;
    return Seat({nullptr, customer, hello});
  }
  const auto scheduler = by_id_.find(ps::kScheduler);
  if (scheduler == by_id_.end()) {
    connect_deadline_ = now_ + options_.connect_timeout;
    return Connect(options_.scheduler, ps::kScheduler);
  }
  if (scheduler->second->connected) scheduler->second->pipe.Send(Encode(hello));
}

void NodeCore::Connect(const Address& to, uint32_t id) {
  transport::Connection* const connection = endpoint_.Connect(now_, to);
  auto peer = std::make_unique<Peer>(connection, next_serial_++);
  peer->ours = true;
  peer->ids = {id};
  peer->name = NameOf(id) + " (" + to.ToString() + ")";
  by_id_[id] = peer.get();
  peers_[connection] = std::move(peer);
}

void NodeCore::OnConnected(Peer& peer) {
  peer.connected = true;
  if (!peer.ours) return;
  if (peer.ids.front() == ps::kScheduler) {
    for (const uint32_t customer : customers_)
      peer.pipe.Send(
          Encode(Hello{options_.role, options_.workers, options_.servers, customer, options_.address}));
    return;
  }
  Greeting greeting;
  for (const Welcome::Own& own : own_) greeting.ids.push_back(own.id);
  peer.pipe.Send(Encode(greeting));
  CheckStarted();
}

Status NodeCore::OnHello(Peer& peer, const Hello& hello) {
  if (options_.role != Role::kScheduler || hello.role == Role::kScheduler)
    return Violation("this is the " + NameOf(options_.role) + ", not the scheduler of its job");
  const auto said = [](uint32_t workers, uint32_t servers) {
    return std::to_string(workers) + " workers and " + std::to_string(servers) + " servers";
  };
  if (hello.workers != options_.workers || hello.servers != options_.servers) {
    return {StatusCode::kSettingsMismatch, "DMLC_NUM_WORKER and DMLC_NUM_SERVER of a " + NameOf(hello.role) +
                                               " say " + said(hello.workers, hello.servers) +
                                               ", of the scheduler " +
                                               said(options_.workers, options_.servers)};
  }
  const auto there =
      std::ranges::count_if(slots_, [&](const Slot& slot) { return slot.hello.role == hello.role; });
  if (started_ || there >= int64_t{Expected(hello.role)}) {
    return {StatusCode::kAlreadyExists, "all " + std::to_string(Expected(hello.role)) + " " +
                                            NameOf(hello.role) + "s of this job are there already"};
  }
  Seat({&peer, hello.customer, hello});
  return {};
}

void NodeCore::Seat(const Slot& slot) {
  slots_.push_back(slot);
  if (slots_.size() == 1 + options_.workers + options_.servers) StartAll();
}

// The scheduler's: all have come. Ranks are by their order.
void NodeCore::StartAll() {
  start_deadline_ = Instant::Infinite();
  std::map<Peer*, std::vector<Welcome::Own>> own;
  std::vector<Address> servers;
  uint32_t worker = 9;
  uint32_t server = 8;
  for (const Slot& slot : slots_) {
    uint32_t id = ps::kScheduler;
    if (slot.hello.role == Role::kWorker) id = std::exchange(worker, worker + 2);
    if (slot.hello.role == Role::kServer) {
      id = std::exchange(server, server + 2);
      Address seen = slot.peer->connection->peer();
      if (slot.hello.address) seen.ip = slot.hello.address->ip;
      servers.push_back(seen);
    }
    own[slot.peer].push_back({slot.customer, id});
    if (slot.peer == nullptr) continue;
    slot.peer->ids.push_back(id);
    slot.peer->name = NameOf(id) + " (" + slot.peer->connection->peer().ToString() + ")";
    by_id_[id] = slot.peer;
  }
  own_ = own[nullptr];
  own.erase(nullptr);
  for (const auto& [peer, ids] : own) peer->pipe.Send(Encode(Welcome{ids, servers}));
  welcomed_ = true;
  CheckStarted();
}

Status NodeCore::OnWelcome(Peer& peer, const Welcome& welcome) {
  const bool fits = peer.ours && peer.ids.front() == ps::kScheduler && !welcomed_ &&
                    welcome.servers.size() == options_.servers && welcome.own.size() == customers_.size() &&
                    std::ranges::all_of(welcome.own, [&](const Welcome::Own& own) {
                      return own.id >= 8 && RoleOf(own.id) == options_.role;
                    });
  if (!fits) return Violation("a welcome that does not fit");
  own_ = welcome.own;
  welcomed_ = true;
  connect_deadline_ = now_ + options_.connect_timeout;
  if (options_.role == Role::kWorker) {
    uint32_t id = 8;
    for (const Address& server : welcome.servers) Connect(server, std::exchange(id, id + 2));
  }
  CheckStarted();
  return {};
}

// A worker has started when it is connected with all servers; the others meet it in the first barrier.
void NodeCore::CheckStarted() {
  if (started_ || !welcomed_) return;
  for (const auto& [id, peer] : by_id_) {
    if (!peer->connected) return;
  }
  if (options_.role == Role::kWorker && by_id_.size() != 1 + options_.servers) return;
  started_ = deliver_all_ = true;
  hooks_.on_started(own_);
}

Status NodeCore::OnGreeting(Peer& peer, const Greeting& greeting) {
  if (options_.role != Role::kServer || peer.ours || !peer.ids.empty() || greeting.ids.empty())
    return Violation("a greeting that does not fit");
  for (const uint32_t id : greeting.ids) {
    if (id < 9 || RoleOf(id) != Role::kWorker || (id - 9) / 2 >= options_.workers || by_id_.contains(id))
      return Violation("no worker, or one that is here already");
  }
  peer.ids = greeting.ids;
  for (const uint32_t id : peer.ids) by_id_[id] = &peer;
  peer.name = NameOf(peer.ids.front()) + " (" + peer.connection->peer().ToString() + ")";
  return {};
}

// --- Messages ---

void NodeCore::Send(uint32_t receiver, Bytes message, bool request) {
  const size_t cost = message.cost();
  if (over_ || failed_) return hooks_.on_sent(cost);
  if (std::ranges::any_of(own_, [receiver](const Welcome::Own& own) { return own.id == receiver; })) {
    local_.push_back(std::move(message));
    return DeliverLocal();
  }
  const auto peer = by_id_.find(receiver);
  if (peer == by_id_.end() || peer->second->bye) {
    hooks_.on_sent(cost);
    if (!request) return;  // the one that asked has left without it
    return Fail(
        {StatusCode::kUnavailable,
         NameOf(receiver) + (left_.contains(receiver) ? " has left; it is asked for something"
                                                      : " is no peer of a " + NameOf(options_.role))});
  }
  if (request) ++peer->second->unanswered;
  peer->second->pipe.Send(std::move(message), cost);
}

void NodeCore::DeliverLocal() {
  while (!local_.empty()) {
    const Bytes& bytes = local_.front();
    const Result<Decoded> message = Decode(bytes);
    if (message.ok() && !hooks_.on_message(std::get<ps::Message>(*message), {})) return;
    hooks_.on_sent(bytes.cost());
    local_.pop_front();
  }
}

void NodeCore::Deliver(Peer& peer) {
  while (const auto next = peer.pipe.Next()) {
    if (over_ || failed_) return;
    Result<Decoded> message = Decode(next->bytes);
    bool held = false;
    const Status taken = message.ok() ? Take(peer, next->window, *message, &held) : message.status();
    if (!taken.ok()) return Refuse(peer, taken);
    if (held) return;
    peer.pipe.Pop();
  }
}

Status NodeCore::Take(Peer& peer, uint32_t window, Decoded& message, bool* held) {
  if (const auto* data = std::get_if<ps::Message>(&message)) return OnData(peer, window, *data, held);
  peer.pipe.Close(window);
  if (const auto* hello = std::get_if<Hello>(&message)) return OnHello(peer, *hello);
  if (const auto* greeting = std::get_if<Greeting>(&message)) return OnGreeting(peer, *greeting);
  if (const auto* welcome = std::get_if<Welcome>(&message)) return OnWelcome(peer, *welcome);
  if (peer.ids.empty()) return Violation("a message before the first one");
  if (const auto* barrier = std::get_if<Barrier>(&message)) {
    if (options_.role != Role::kScheduler || std::ranges::count(peer.ids, barrier->id) == 0)
      return Violation("a barrier of another node");
    Enter(*barrier);
  } else if (const auto* release = std::get_if<Release>(&message)) {
    if (peer.ids.front() != ps::kScheduler) return Violation("a release that is not the scheduler's");
    Released(release->barrier);
  } else {
    OnBye(peer);
  }
  return {};
}

Status NodeCore::OnData(Peer& peer, uint32_t window, const ps::Message& message, bool* held) {
  *held = !started_;  // a worker may know of the start earlier
  if (*held) return {};
  const bool to_us = std::ranges::any_of(
      own_, [&](const Welcome::Own& own) { return own.id == static_cast<uint32_t>(message.recver); });
  if (std::ranges::count(peer.ids, static_cast<uint32_t>(message.sender)) == 0 || !to_us)
    return Violation("a message of another node, or for one");
  if (!message.request) {
    // What was asked for is taken at once: as much as was asked for is the bound.
    peer.pipe.Close(window);
    if (peer.unanswered > 0) --peer.unanswered;
    (void)hooks_.on_message(message, {});
    return {};
  }
  if (hooks_.on_message(message, {peer.serial, window})) return {};
  if (leaving_) {
    peer.pipe.Close(window);
    return {};
  }
  *held = true;
  if (held_deadline_.IsInfinite()) held_deadline_ = now_ + options_.connect_timeout;
  held_ = "a request of " + peer.name + " for app " + std::to_string(message.app_id);
  return {};
}

void NodeCore::Taken(const Ticket& ticket) {
  for (const auto& [connection, peer] : peers_) {
    if (peer->serial == ticket.peer) return peer->pipe.Close(ticket.window);
  }
}

void NodeCore::Retry() {
  held_deadline_ = Instant::Infinite();
  DeliverLocal();
  DeliverAll();
}

void NodeCore::DeliverAll() {
  std::vector<Peer*> all;  // what is delivered may make connections
  for (const auto& [connection, peer] : peers_) all.push_back(peer.get());
  for (Peer* const peer : all) Deliver(*peer);
}

// --- Barriers ---

void NodeCore::Enter(const Barrier& barrier) {
  if (over_ || failed_) return;
  if (options_.role == Role::kScheduler) {
    barriers_[barrier.group][barrier.id] = barrier;
    return CheckBarriers();
  }
  const auto scheduler = by_id_.find(ps::kScheduler);
  if (scheduler == by_id_.end() || scheduler->second->bye)
    return Fail({StatusCode::kUnavailable, "the scheduler has left, and this node waits in a barrier"});
  scheduler->second->pipe.Send(Encode(barrier));
}

void NodeCore::CheckBarriers() {
  for (auto& [group, waiting] : barriers_) {
    if (waiting.empty()) continue;
    for (const uint32_t id : left_) {
      if (InGroup(id, group))
        return Fail(
            {StatusCode::kUnavailable, NameOf(id) + " has left, and others wait for it in a barrier"});
    }
    size_t members = 0;
    for (const auto& [id, peer] : by_id_) members += InGroup(id, group) ? 1 : 0;
    for (const Welcome::Own& own : own_) members += InGroup(own.id, group) ? 1 : 0;
    if (waiting.size() < members) continue;
    for (const auto& [id, barrier] : std::exchange(waiting, {})) {
      if (const auto peer = by_id_.find(id); peer != by_id_.end()) {
        peer->second->pipe.Send(Encode(Release{barrier}));
      } else {
        Released(barrier);
      }
    }
  }
}

void NodeCore::Released(const Barrier& barrier) {
  if (barrier.last) leaving_ = true;
  hooks_.on_released(barrier);
}

// --- Ends ---

void NodeCore::OnBye(Peer& peer) {
  peer.bye = true;
  left_.insert(peer.ids.begin(), peer.ids.end());
  if (leaving_) return CheckLeft();
  if (peer.unanswered > 0)
    return Fail({StatusCode::kUnavailable,
                 peer.name + " has left without answering " + std::to_string(peer.unanswered) + " requests"});
  CheckBarriers();
}

void NodeCore::OnClosed(Peer& peer, const Status& why) {
  hooks_.on_sent(peer.pipe.unsent());
  const uint32_t id = peer.ids.empty() ? 0 : peer.ids.front();
  const bool silent = why.code() == StatusCode::kUnavailable || why.code() == StatusCode::kPeerDead;
  const bool again =
      peer.ours && !peer.connected && silent && now_ < connect_deadline_ && !leaving_ && !failed_;
  for (const uint32_t each : peer.ids) by_id_.erase(each);
  std::erase_if(slots_, [&](const Slot& slot) { return slot.peer == &peer; });
  const auto own = peers_.extract(peer.connection);
  gone_.push_back(std::move(own.mapped()));
  if (again) return Connect(peer.connection->peer(), id);
  if (leaving_ || failed_) return CheckLeft();
  if (peer.bye || peer.ids.empty()) return;
  std::string what = why.message();
  if (why.code() == StatusCode::kPeerDead) {
    what = peer.name + " was silent for " + SecondsText(options_.connection.idle_timeout);
  } else if (!peer.connected) {
    what = "no answer from " + peer.name + " within " + SecondsText(options_.connect_timeout) + ": " + what;
  } else if (why.ok()) {
    what = peer.name + " has ended without ps::Finalize";
  } else {
    what = peer.name + ": " + what;
  }
  Fail({why.ok() ? StatusCode::kAborted : why.code(), what});
}

// A peer that says what none says: it goes. A stranger's end concerns only itself.
void NodeCore::Refuse(Peer& peer, const Status& why) { peer.connection->Close(why); }

void NodeCore::Fail(const Status& why) {
  if (over_ || failed_) return;
  failed_ = why;
  endpoint_.CloseAll({StatusCode::kAborted, why.message()});
}

void NodeCore::Leave() {
  if (over_ || failed_) return;
  leaving_ = true;
  for (const auto& [connection, peer] : peers_) {
    if (peer->connected && !peer->ids.empty()) peer->pipe.Send(Encode(Bye{}));
  }
  said_bye_ = true;
  CheckLeft();
}

// Bounded: a peer that does not take what was sent is silent, and its connection ends.
void NodeCore::CheckLeft() {
  if (!said_bye_ || closed_ || over_ || failed_) return;
  if (!std::ranges::all_of(peers_, [](const auto& each) {
        const Peer& peer = *each.second;
        return peer.bye || peer.ids.empty() || !peer.connected || peer.pipe.idle();
      })) {
    return;
  }
  closed_ = true;
  endpoint_.CloseAll(Status::Ok());
}

// --- Connections ---

void NodeCore::Drain() {
  while (const auto happened = endpoint_.PollEvent()) {
    if (happened->connection != nullptr) Handle(happened->connection, happened->event);
  }
  if (std::exchange(deliver_all_, false)) DeliverAll();
}

void NodeCore::Handle(transport::Connection* connection, const transport::Event& event) {
  namespace ev = transport::event;
  if (std::holds_alternative<ev::Accepted>(event)) {
    peers_[connection] = std::make_unique<Peer>(connection, next_serial_++);
    if (said_bye_ || failed_) connection->Close({StatusCode::kUnavailable, "the node is about to end"});
    return;
  }
  const auto found = peers_.find(connection);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  if (const auto* closed = std::get_if<ev::Closed>(&event)) return OnClosed(peer, closed->why);
  if (failed_) return;
  Status status;
  if (std::holds_alternative<ev::Connected>(event)) {
    OnConnected(peer);
  } else if (const auto* open = std::get_if<ev::WindowOpened>(&event)) {
    status = peer.pipe.OnWindowOpened(open->key, open->open, peer.ids.empty());
  } else if (const auto* chunk = std::get_if<ev::Chunk>(&event)) {
    status = peer.pipe.OnChunk(*chunk);
  } else if (std::holds_alternative<ev::WindowState>(event)) {
    Deliver(peer);
  } else if (const auto* over = std::get_if<ev::WindowClosed>(&event)) {
    const Result<size_t> bytes = peer.pipe.OnWindowClosed(over->key, over->reason);
    if (bytes.ok()) hooks_.on_sent(*bytes);
    status = bytes.ok() ? Status::Ok() : bytes.status();
    CheckLeft();
  } else if (std::holds_alternative<ev::ControlBytes>(event)) {
    status = Violation("it is no program of ps/ps.h");
  }
  if (!status.ok()) Refuse(peer, status);
}

std::string NodeCore::Missing() const {
  std::string text;
  for (const Role role : {Role::kServer, Role::kWorker}) {
    const auto there =
        std::ranges::count_if(slots_, [role](const Slot& slot) { return slot.hello.role == role; });
    if (!text.empty()) text += ", ";
    text += std::to_string(there) + " of " + std::to_string(Expected(role)) + " " + NameOf(role) + "s";
  }
  return text;
}

// --- DatagramCore ---

void NodeCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                              const transport::ReceiveInfo& info) {
  now_ = now;
  gone_.clear();
  endpoint_.HandleDatagram(now, from, datagram, info);
  Drain();
}

void NodeCore::HandleTimeout(Instant now) {
  now_ = now;
  gone_.clear();
  endpoint_.HandleTimeout(now);
  Drain();
  Advance();
}

void NodeCore::Advance() {
  if (now_ >= start_deadline_) {
    Fail({StatusCode::kDeadlineExceeded,
          "within " + SecondsText(options_.wait_timeout) + " only " + Missing() + " have come"});
  }
  if (now_ >= held_deadline_) {
    Fail({StatusCode::kNotFound,
          held_ + ": there is no such server here after " + SecondsText(options_.connect_timeout)});
  }
}

void NodeCore::HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) {
  now_ = now;
  endpoint_.HandleSendRefused(now, destination, datagram_bytes);
  Drain();
}

std::optional<transport::Transmit> NodeCore::PollTransmit(Instant now, MutableByteSpan buffer) {
  now_ = now;
  Drain();  // requests may have ended connections
  if (auto transmit = endpoint_.PollTransmit(now, buffer)) return transmit;
  if (over_) return std::nullopt;
  // The peers know of it.
  if (failed_) {
    over_ = true;
    hooks_.on_failed(*failed_);
  } else if (said_bye_ && endpoint_.connection_count() == 0) {
    over_ = true;
    hooks_.on_left();
  }
  return std::nullopt;
}

Instant NodeCore::NextTimeout() const {
  return std::min({endpoint_.NextTimeout(), start_deadline_, held_deadline_});
}

bool NodeCore::HasWork() const {
  return std::ranges::any_of(peers_, [](const auto& each) { return each.second->pipe.HasWork(); });
}

void NodeCore::Work(Instant now) {
  now_ = now;
  for (const auto& [connection, peer] : peers_) {
    if (!peer->pipe.HasWork()) continue;
    if (const Status done = peer->pipe.Work(); !done.ok()) Refuse(*peer, done);
    return;  // what is left is bounded, and for the next call
  }
}

}  // namespace longhaul::pslite
