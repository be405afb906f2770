// The node of this process (NodeCore) in a thread with a socket, and the customers' threads.

#include "ps/internal/postoffice.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/random.h"
#include "codec/fec/fec.h"
#include "ps/internal/customer.h"
#include "pslite/node_core.h"
#include "pslite/settings.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/fault_injector.h"
#include "transport/udp/resolve.h"

namespace ps {

using longhaul::Duration;
using longhaul::Result;
using longhaul::Status;
using longhaul::StatusCode;
using longhaul::pslite::Bytes;
using longhaul::pslite::NodeCore;
using longhaul::pslite::Role;
using longhaul::pslite::Ticket;

namespace {

// What Send may have queued before it waits.
constexpr size_t kMaxQueued = size_t{128} << 20;

[[noreturn]] void Throw(const std::string& text) { throw Error("ps: " + text); }

// Its parts end from the last one to the first.
struct Node {
  longhaul::keys::LoadedSecurity security;
  std::unique_ptr<longhaul::codec::ErasureCodeLibrary> coder;
  std::unique_ptr<longhaul::udp::FaultInjector> faults;
  std::unique_ptr<NodeCore> core;
  std::unique_ptr<longhaul::udp::EventLoop> loop;
  std::thread thread;

  ~Node() {
    if (!thread.joinable()) return;
    loop->Stop();
    thread.join();
  }
};

longhaul::transport::ConnectionOptions ConnectionOf(const longhaul::ConnectOptions& o,
                                                    Duration connect_timeout) {
  longhaul::transport::ConnectionOptions connection;
  connection.idle_timeout = o.idle_timeout;
  connection.handshake_timeout = connect_timeout;
  connection.keepalive = std::min<Duration>(connection.keepalive, o.idle_timeout / 4);
  connection.max_datagram = longhaul::ByteCount(o.datagram_bytes);
  connection.rate.control = o.rate_controller;
  if (!o.rate_cap.IsZero()) connection.rate.cap = o.rate_cap;
  if (!o.rate_floor.IsZero()) connection.rate.floor = o.rate_floor;
  connection.rate.floor = std::min(connection.rate.floor, connection.rate.cap);
  return connection;
}

}  // namespace

struct Customer::Impl {
  struct Open {
    size_t expected = 0;
    size_t answers = 0;
  };

  int app = 0;
  int customer = 0;
  RecvHandle handle;
  std::deque<std::pair<Message, Ticket>> queue;
  std::map<int, Open> open;  // requests, by time stamp
  int next_timestamp = 0;
  bool stop = false;
  std::thread thread;
};

namespace {

thread_local const Customer::RecvHandle* handling = nullptr;  // of the customer that this thread is of

}  // namespace

struct Postoffice::Impl {
  using Key2 = std::pair<int, int>;

  // --- Any thread ---
  const longhaul::pslite::Place& PlaceOrThrow() const {
    if (place.ok()) return *place;
    Throw(place.status().message());
  }
  bool Is(Role role) const { return place.ok() && place->role == role; }
  std::string Name() const {
    return own.empty() ? longhaul::pslite::NameOf(place->role) : longhaul::pslite::NameOf(own.front().id);
  }
  // Runs `function` on the core, in the node's thread; nothing without a node. REQUIRES: the lock.
  void PostLocked(std::function<void(NodeCore&)> function) {
    if (node == nullptr || left) return;
    const Status posted =
        node->loop->Post([core = node->core.get(), function = std::move(function)] { function(*core); });
    if (!posted.ok() && failure.empty()) failure = posted.ToString();
  }
  void Post(std::function<void(NodeCore&)> function) {
    const std::lock_guard lock(mutex);
    PostLocked(std::move(function));
  }
  // Until `done` holds. Errors: Error (the job has failed, there is none).
  template <typename Done>
  void Wait(std::unique_lock<std::mutex>& lock, Done done) {
    changed.wait(lock, [&] { return done() || !failure.empty() || node == nullptr; });
    if (!done()) Throw(failure.empty() ? "Start was not called, or Finalize has ended the node" : failure);
  }

  Status Begin();
  void End();
  void EnterBarrier(int customer_id, int group, bool last);
  uint32_t IdOf(int customer_id) const;
  void BuildIds();
  void Run(Customer::Impl* customer);
  std::shared_ptr<Customer::Impl> Find(const Message& message) const;

  // --- The node's thread ---
  longhaul::pslite::NodeHooks Hooks();
  bool OnMessage(const Message& message, const Ticket& ticket);
  void OnFailed(const Status& why);

  Result<longhaul::pslite::Place> place = longhaul::pslite::ReadPlace();
  std::map<int, std::vector<int>> ids;  // of nodes and groups
  std::vector<Range> ranges;

  std::mutex starting;  // of Start and of Finalize's end; taken before `mutex`
  std::unique_ptr<Node> node;

  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;
  bool started = false;
  bool left = false;
  std::vector<longhaul::pslite::Welcome::Own> own;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> released;  // barriers, ever, by number and group
  size_t queued = 0;                                           // Bytes::cost of what Send was given
  std::map<Key2, std::shared_ptr<Customer::Impl>> customers;
  Callback exit_callback;
};

// --- The node ---

Status Postoffice::Impl::Begin() {
  namespace udp = longhaul::udp;
  if (!place.ok()) return place.status();
  const auto options = longhaul::pslite::ReadConnection(*place);
  if (!options.ok()) return options.status();
  const Result<longhaul::Address> scheduler = udp::ResolvePeer(place->scheduler);
  if (!scheduler.ok())
    return {scheduler.status().code(), "DMLC_PS_ROOT_URI: " + scheduler.status().message()};
  auto fresh = std::make_unique<Node>();
  longhaul::Address bind = udp::UdpSocket::AnyAddressFor(*scheduler);
  if (scheduler->IsLoopback()) bind.ip = scheduler->ip;
  if (place->role == Role::kScheduler) bind.port = scheduler->port;
  auto socket = udp::UdpSocket::Open(bind);
  if (!socket.ok()) return socket.status();
  auto security =
      longhaul::keys::LoadSecurity({.key_file = options->key_file,
                                    .insecure = options->insecure,
                                    .job = options->job,
                                    .role = longhaul::crypto::Role::kServer,
                                    .cipher = options->cipher,
                                    .server_name = longhaul::keys::ServerName(socket->local_address())});
  if (!security.ok()) return security.status();
  if (security->kind == "tls-certificates")
    return {StatusCode::kInvalidArgument,
            "LONGHAUL_KEY is a certificate: nodes are clients and servers of each other, "
            "which takes a key that all share"};
  fresh->security = *std::move(security);
  longhaul::pslite::NodeOptions core;
  core.security = fresh->security.security();
  core.role = place->role;
  core.workers = place->workers;
  core.servers = place->servers;
  core.scheduler = *scheduler;
  if (options->connect_timeout > Duration(0)) core.connect_timeout = options->connect_timeout;
  core.wait_timeout = options->wait_timeout;
  core.connection = ConnectionOf(*options, core.connect_timeout);
  if (!place->node_host.empty()) {
    const auto host = udp::ResolveListen(place->node_host);
    if (!host.ok()) return {host.status().code(), "DMLC_NODE_HOST: " + host.status().message()};
    core.address = *host;
  }
  if (!options->fault.empty()) {
    const auto faults = udp::ParseFaults(options->fault);
    if (!faults.ok()) return {faults.status().code(), "LONGHAUL_FAULT: " + faults.status().message()};
    fresh->faults = std::make_unique<udp::FaultInjector>(*faults);
  }
  auto coder = longhaul::codec::ErasureCodeLibrary::Create();
  if (!coder.ok()) return coder.status();
  fresh->coder = *std::move(coder);
  fresh->core =
      std::make_unique<NodeCore>(core, Hooks(), fresh->coder.get(), longhaul::Random(udp::EntropySeed()));
  auto loop = udp::EventLoop::Create(fresh->core.get(), *std::move(socket), fresh->faults.get());
  if (!loop.ok()) return loop.status();
  fresh->loop = *std::move(loop);
  try {
    fresh->thread = std::thread([this, running = fresh->loop.get()] {
      running->Run();
      if (!running->failure().ok()) OnFailed(running->failure());
    });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for the node: ") + error.what()};
  }
  const std::lock_guard lock(mutex);
  node = std::move(fresh);
  failure.clear();
  return {};
}

// REQUIRES: `starting`, but not `mutex`.
void Postoffice::Impl::End() {
  std::unique_ptr<Node> last;
  {
    const std::lock_guard lock(mutex);
    last = std::move(node);
  }
  changed.notify_all();
  last.reset();  // its hooks are called until then
  const std::lock_guard lock(mutex);
  started = left = false;
  own.clear();
  queued = 0;
}

longhaul::pslite::NodeHooks Postoffice::Impl::Hooks() {
  longhaul::pslite::NodeHooks hooks;
  const auto locked = [this](auto change) {
    {
      const std::lock_guard lock(mutex);
      change();
    }
    changed.notify_all();
  };
  hooks.on_started = [this, locked](const auto& numbers) {
    locked([&] {
      own = numbers;
      started = true;
    });
  };
  hooks.on_message = [this](const Message& message, const Ticket& ticket) {
    return OnMessage(message, ticket);
  };
  hooks.on_released = [this, locked](const longhaul::pslite::Barrier& barrier) {
    locked([&] { ++released[{barrier.id, barrier.group}]; });
  };
  hooks.on_sent = [this, locked](size_t cost) { locked([&] { queued -= cost; }); };
  hooks.on_failed = [this](const Status& why) { OnFailed(why); };
  hooks.on_left = [this, locked] { locked([&] { left = true; }); };
  return hooks;
}

void Postoffice::Impl::OnFailed(const Status& why) {
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return;
    failure = Name() + ": " + why.message();
    std::fprintf(stderr, "ps: %s\n", failure.c_str());
  }
  changed.notify_all();
}

std::shared_ptr<Customer::Impl> Postoffice::Impl::Find(const Message& message) const {
  // A worker may have several customers of one app, a server has one.
  const bool by_customer = !message.request || place->role == Role::kWorker;
  const auto found = customers.find({message.app_id, by_customer ? message.customer_id : message.app_id});
  return found == customers.end() ? nullptr : found->second;
}

bool Postoffice::Impl::OnMessage(const Message& message, const Ticket& ticket) {
  {
    const std::lock_guard lock(mutex);
    const auto customer = Find(message);
    if (customer == nullptr) return false;
    customer->queue.emplace_back(message, ticket);
  }
  changed.notify_all();
  return true;
}

// Of a customer that has not called Start: the first one's.
uint32_t Postoffice::Impl::IdOf(int customer_id) const {
  const auto found = std::find_if(own.begin(), own.end(), [customer_id](const auto& each) {
    return each.customer == static_cast<uint32_t>(customer_id);
  });
  return (found == own.end() ? own.front() : *found).id;
}

void Postoffice::Impl::EnterBarrier(int customer_id, int group, bool last) {
  std::unique_lock lock(mutex);
  Wait(lock, [&] { return started; });
  const uint32_t id = IdOf(customer_id);
  const auto number = static_cast<uint32_t>(group);
  if (!longhaul::pslite::InGroup(id, number))
    Throw(Name() + " is not in the group " + std::to_string(group) + " of a barrier");
  const uint64_t before = released[{id, number}];
  PostLocked(
      [barrier = longhaul::pslite::Barrier{id, number, last}](NodeCore& core) { core.Enter(barrier); });
  Wait(lock, [&] { return released[{id, number}] != before; });
}

void Postoffice::Impl::BuildIds() {
  const longhaul::pslite::Place& known = PlaceOrThrow();
  const std::lock_guard lock(mutex);
  if (!ids.empty()) return;
  std::vector<int> all = {kScheduler};
  for (uint32_t i = 0; i < known.servers; ++i) all.push_back(ServerRankToID(static_cast<int>(i)));
  for (uint32_t i = 0; i < known.workers; ++i) all.push_back(WorkerRankToID(static_cast<int>(i)));
  for (int group = 1; group < 8; ++group) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(ids[group]), [group](int id) {
      return longhaul::pslite::InGroup(static_cast<uint32_t>(id), static_cast<uint32_t>(group));
    });
  }
  for (const int id : all) ids[id] = {id};
  for (uint64_t i = 0; i < known.servers; ++i) {
    const uint64_t part = kMaxKey / known.servers;
    ranges.emplace_back(part * i, i + 1 == known.servers ? kMaxKey : part * (i + 1));
  }
}

// --- Postoffice ---

Postoffice* Postoffice::Get() {
  static Postoffice office;
  return &office;
}

Postoffice::Postoffice() : impl_(std::make_shared<Impl>()) {}

// Of a process that ends without Finalize: the others need not wait for the idle time-out.
Postoffice::~Postoffice() {
  const std::lock_guard starting(impl_->starting);
  if (impl_->node == nullptr) return;
  {
    std::unique_lock lock(impl_->mutex);
    impl_->PostLocked([](NodeCore& core) {
      core.Fail({StatusCode::kAborted, "it has ended without ps::Finalize"});
    });
    impl_->changed.wait_for(lock, std::chrono::seconds(1), [this] { return !impl_->failure.empty(); });
  }
  impl_->End();
}

void Postoffice::Start(int customer_id, const char*, bool do_barrier) {
  {
    const std::lock_guard starting(impl_->starting);
    if (impl_->node == nullptr) {
      if (const Status begun = impl_->Begin(); !begun.ok()) Throw(begun.message());
    }
  }
  {
    std::unique_lock lock(impl_->mutex);
    impl_->PostLocked([customer_id](NodeCore& core) {
      core.Join(longhaul::udp::Now(), static_cast<uint32_t>(customer_id));
    });
    impl_->Wait(lock, [this] { return impl_->started; });
  }
  if (do_barrier) Barrier(customer_id, kScheduler + kServerGroup + kWorkerGroup);
}

void Postoffice::Finalize(int customer_id, bool do_barrier) {
  if (do_barrier) impl_->EnterBarrier(customer_id, kScheduler + kServerGroup + kWorkerGroup, true);
  if (customer_id != 0) return;
  Callback callback;
  {
    const std::lock_guard starting(impl_->starting);
    {
      std::unique_lock lock(impl_->mutex);
      impl_->PostLocked([](NodeCore& core) { core.Leave(); });
      if (impl_->node != nullptr) impl_->Wait(lock, [this] { return impl_->left; });
      callback = std::exchange(impl_->exit_callback, nullptr);
    }
    impl_->End();
  }
  if (callback) callback();
}

void Postoffice::RegisterExitCallback(const Callback& callback) {
  const std::lock_guard lock(impl_->mutex);
  impl_->exit_callback = callback;
}

void Postoffice::Barrier(int customer_id, int node_group) {
  impl_->EnterBarrier(customer_id, node_group, false);
}

int Postoffice::num_workers() const { return static_cast<int>(impl_->PlaceOrThrow().workers); }
int Postoffice::num_servers() const { return static_cast<int>(impl_->PlaceOrThrow().servers); }
bool Postoffice::is_worker() const { return impl_->Is(Role::kWorker); }
bool Postoffice::is_server() const { return impl_->Is(Role::kServer); }
bool Postoffice::is_scheduler() const { return impl_->Is(Role::kScheduler); }

int Postoffice::my_rank() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->own.empty() ? 0 : IDtoRank(static_cast<int>(impl_->own.front().id));
}

const std::vector<Range>& Postoffice::GetServerKeyRanges() {
  impl_->BuildIds();
  return impl_->ranges;
}

const std::vector<int>& Postoffice::GetNodeIDs(int node_or_group) const {
  impl_->BuildIds();
  const auto found = impl_->ids.find(node_or_group);
  if (found == impl_->ids.end()) Throw("there is no node " + std::to_string(node_or_group));
  return found->second;
}

// --- Customer ---

// The customer's thread.
void Postoffice::Impl::Run(Customer::Impl* customer) {
  handling = &customer->handle;
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [customer] { return customer->stop || !customer->queue.empty(); });
    if (customer->stop) break;
    const auto [message, ticket] = std::move(customer->queue.front());
    customer->queue.pop_front();
    std::string wrong;
    lock.unlock();
    try {
      customer->handle(message);
    } catch (const std::exception& error) {
      wrong = error.what();
    } catch (...) {
      wrong = "an exception of unknown type";
    }
    lock.lock();
    if (!wrong.empty() && failure.empty()) {
      PostLocked([text = "app " + std::to_string(customer->app) +
                         " could not handle a message: " + wrong](NodeCore& core) {
        core.Fail({StatusCode::kAborted, text});
      });
    }
    if (!wrong.empty()) continue;
    if (ticket.peer != 0) PostLocked([back = ticket](NodeCore& core) { core.Taken(back); });
    if (message.request) continue;
    const auto open = customer->open.find(message.timestamp);
    if (open == customer->open.end()) continue;
    if (++open->second.answers >= open->second.expected) customer->open.erase(open);
    changed.notify_all();
  }
}

Customer::Customer(int app_id, int customer_id, RecvHandle handle) : impl_(std::make_shared<Impl>()) {
  impl_->app = app_id;
  impl_->customer = customer_id;
  impl_->handle = std::move(handle);
  const std::shared_ptr<Postoffice::Impl> office = Postoffice::Get()->impl_;
  {
    const std::lock_guard lock(office->mutex);
    if (office->customers.contains({app_id, customer_id}))
      Throw("there is a customer " + std::to_string(customer_id) + " of app " + std::to_string(app_id) +
            " already");
    impl_->thread = std::thread([office, own = impl_] { office->Run(own.get()); });
    office->customers[{app_id, customer_id}] = impl_;
  }
  office->Post([](NodeCore& core) { core.Retry(); });
}

Customer::~Customer() {
  const std::shared_ptr<Postoffice::Impl> office = Postoffice::Get()->impl_;
  {
    const std::lock_guard lock(office->mutex);
    office->customers.erase({impl_->app, impl_->customer});
    impl_->stop = true;
  }
  office->changed.notify_all();
  if (impl_->thread.get_id() == std::this_thread::get_id()) {
    impl_->thread.detach();
  } else {
    impl_->thread.join();
  }
}

int Customer::app_id() const { return impl_->app; }
int Customer::customer_id() const { return impl_->customer; }

int Customer::NewRequest(int recver) {
  const size_t expected = Postoffice::Get()->GetNodeIDs(recver).size();
  Postoffice::Impl& office = *Postoffice::Get()->impl_;
  std::unique_lock lock(office.mutex);
  const bool waits = handling != &impl_->handle;
  office.Wait(lock, [&] { return !waits || impl_->open.size() < size_t{kMaxRequests}; });
  if (!office.failure.empty()) Throw(office.failure);
  const int timestamp = impl_->next_timestamp++;
  impl_->open[timestamp].expected = expected;
  return timestamp;
}

void Customer::WaitRequest(int timestamp) {
  Postoffice::Impl& office = *Postoffice::Get()->impl_;
  std::unique_lock lock(office.mutex);
  if (handling == &impl_->handle && impl_->open.contains(timestamp))
    Throw("a callback waits for what only its own thread could bring");
  office.Wait(lock, [&] { return !impl_->open.contains(timestamp); });
}

int Customer::NumResponse(int timestamp) {
  Postoffice::Impl& office = *Postoffice::Get()->impl_;
  const std::lock_guard lock(office.mutex);
  const auto open = impl_->open.find(timestamp);
  return open == impl_->open.end() ? 0 : static_cast<int>(open->second.answers);
}

void Customer::AddResponse(int timestamp, int count) {
  Postoffice::Impl& office = *Postoffice::Get()->impl_;
  {
    const std::lock_guard lock(office.mutex);
    const auto open = impl_->open.find(timestamp);
    if (open == impl_->open.end()) return;
    open->second.answers += static_cast<size_t>(count);
    if (open->second.answers >= open->second.expected) impl_->open.erase(open);
  }
  office.changed.notify_all();
}

void Customer::Send(const Message& message) {
  Postoffice::Impl& office = *Postoffice::Get()->impl_;
  Message sent = message;
  {
    std::unique_lock lock(office.mutex);
    // A worker's thread takes what servers wait to send: it never waits for room itself.
    const bool waits = handling == nullptr || office.Is(Role::kServer);
    office.Wait(lock, [&] { return !waits || office.queued < kMaxQueued; });
    if (!office.failure.empty()) Throw(office.failure);
    if (office.node == nullptr || !office.started)
      Throw("nothing can be sent before Start and after Finalize");
    sent.sender = static_cast<int>(office.IdOf(message.request ? impl_->customer : 0));
  }
  Result<Bytes> bytes = longhaul::pslite::Encode(sent);
  if (!bytes.ok()) Throw(bytes.status().message());
  const std::lock_guard lock(office.mutex);
  office.queued += bytes->cost();
  office.PostLocked([to = static_cast<uint32_t>(sent.recver), request = sent.request,
                     bytes = *std::move(bytes)](NodeCore& core) { core.Send(to, bytes, request); });
}

}  // namespace ps
