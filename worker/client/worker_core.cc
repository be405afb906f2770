#include "worker/client/worker_core.h"

#include <algorithm>
#include <utility>

namespace longhaul::worker {
namespace {

// A tensor of as many chunks as one may have fits a window.
WorkerCoreOptions WithLargestWindows(WorkerCoreOptions options) {
  options.connection.max_window_bytes = std::max(options.connection.max_window_bytes,
                                                 transport::LargestWindow(options.connection.max_datagram));
  return options;
}

transport::EndpointOptions EndpointOptionsOf(const WorkerCoreOptions& options, codec::ErasureCoder* coder) {
  transport::EndpointOptions endpoint;
  endpoint.connection = options.connection;
  endpoint.connection.rate.max_datagram = options.connection.max_datagram;
  endpoint.accepts = false;
  endpoint.coder = coder;
  endpoint.security = options.security;
  return endpoint;
}

}  // namespace

WorkerCore::WorkerCore(const WorkerCoreOptions& options, codec::ErasureCoder* coder, Random random)
    : session_(WithLargestWindows(options)),
      endpoint_(EndpointOptionsOf(WithLargestWindows(options), coder), random) {}

WorkerCore::~WorkerCore() = default;

ClientStats WorkerCore::stats() const {
  ClientStats stats = session_.stats();
  const transport::EndpointStats endpoint = endpoint_.stats();
  stats.datagrams_dropped += endpoint.unknown_connection_dropped + endpoint.malformed_dropped +
                             endpoint.not_authentic_dropped + endpoint.late_long_dropped +
                             endpoint.failures_limited;
  stats.longest_event = longest_event_;
  return stats;
}

void WorkerCore::Start(Instant now, const Address& server) {
  session_.AdvanceTo(now);
  server_ = server;
  session_.Start(now, endpoint_.Connect(now, server));
}

void WorkerCore::Declare(const Declaration& declaration, DeclareCallback callback) {
  session_.Declare(declaration, std::move(callback));
}

void WorkerCore::Push(TensorHandle tensor, std::span<const float> gradient, Callback callback, float weight) {
  session_.Push(tensor, gradient, std::move(callback), weight);
}

void WorkerCore::PushPull(TensorHandle tensor, std::span<const float> gradient, std::span<float> out,
                          Callback callback, float weight) {
  session_.PushPull(tensor, gradient, out, std::move(callback), weight);
}

void WorkerCore::Clock(TensorHandle tensor, WorkerSession::ClockCallback callback) {
  session_.Clock(tensor, std::move(callback));
}

void WorkerCore::Pull(TensorHandle tensor, std::span<float> out, const PullOptions& options,
                      Callback callback) {
  session_.Pull(tensor, out, options, std::move(callback));
}

void WorkerCore::Barrier(const std::string& name, Callback callback) {
  session_.Barrier(name, std::move(callback));
}

void WorkerCore::Leave(const Status& why) { session_.Leave(why); }

void WorkerCore::Fail(const Status& why) { session_.Fail(why); }

void WorkerCore::Drain() {
  while (const auto happened = endpoint_.PollEvent()) session_.Handle(happened->event);
}

void WorkerCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                                const transport::ReceiveInfo& info) {
  session_.AdvanceTo(now);
  endpoint_.HandleDatagram(now, from, datagram, info);
  Drain();
  session_.FinishEvent();
}

void WorkerCore::HandleTimeout(Instant now) {
  session_.AdvanceTo(now);
  endpoint_.HandleTimeout(now);
  Drain();
  session_.HandleTimeout();
  if (session_.WantsConnection()) session_.Reopen(endpoint_.Connect(now, server_));
  session_.FinishEvent();
}

void WorkerCore::HandleSendRefused(Instant now, const Address& destination, size_t datagram_bytes) {
  session_.AdvanceTo(now);
  endpoint_.HandleSendRefused(now, destination, datagram_bytes);
  Drain();
  session_.FinishEvent();
}

std::optional<transport::Transmit> WorkerCore::PollTransmit(Instant now, MutableByteSpan buffer) {
  session_.AdvanceTo(now);
  Drain();  // requests since the last event may have ended the connection
  return endpoint_.PollTransmit(now, buffer);
}

void WorkerCore::Work(Instant now) {
  session_.AdvanceTo(now);
  session_.Work();
}

bool WorkerCore::WantsPort() const {
  const transport::Connection* connection = session_.connection();
  return connection != nullptr && connection->wants_new_path();
}

void WorkerCore::HandlePort(Instant now) {
  session_.AdvanceTo(now);
  session_.TakeNewPath();
}

Instant WorkerCore::NextTimeout() const { return std::min(endpoint_.NextTimeout(), session_.NextTimeout()); }

}  // namespace longhaul::worker
