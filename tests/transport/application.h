// An endpoint that a test can drive like a whole program: its events are polled after everything, and go to
// what the test overrides.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "transport/core/endpoint/endpoint.h"

namespace longhaul::transport {

// What the core wants to send now, datagram by datagram.
inline std::vector<std::vector<uint8_t>> TakeDatagrams(DatagramCore& from, Instant now) {
  std::vector<std::vector<uint8_t>> datagrams;
  std::vector<uint8_t> buffer(65'535);
  while (const auto t = from.PollTransmit(now, buffer)) {
    for (size_t at = 0; at < t->size; at += t->segment_bytes) {
      const ByteSpan one = ByteSpan(buffer).subspan(at, std::min(t->segment_bytes, t->size - at));
      datagrams.emplace_back(one.begin(), one.end());
    }
  }
  return datagrams;
}

// An application at the end of a connection. Takes what comes, and does nothing with it.
class Application {
 public:
  virtual ~Application() = default;
  virtual void OnConnected(Connection&) {}
  virtual void OnClosed(Connection&, const Status&) {}
  virtual void OnControlData(Connection&, ByteSpan) {}
  virtual void OnControlWritable(Connection&) {}
  // An error refuses the window.
  virtual Status OnWindowOpened(Connection&, WindowKey, const wire::WindowOpenFrame&) { return Status::Ok(); }
  virtual ChunkVerdict OnChunk(Connection&, const event::Chunk&) { return ChunkVerdict::kTaken; }
  virtual void OnWindowState(Connection&, const event::WindowState&) {}
  virtual void OnWindowClosed(Connection&, const event::WindowClosed&) {}

  void Handle(Connection& connection, const Event& happened) {
    struct Visitor {
      Application& self;
      Connection& c;
      void operator()(const event::Connected&) { self.OnConnected(c); }
      void operator()(const event::ControlBytes& e) { self.OnControlData(c, e.bytes); }
      void operator()(const event::ControlWritable&) { self.OnControlWritable(c); }
      void operator()(const event::WindowOpened& e) {
        if (!self.OnWindowOpened(c, e.key, e.open).ok()) c.CloseWindow(e.key, wire::CloseReason::kExcluded);
      }
      void operator()(const event::Chunk& e) {
        if (self.OnChunk(c, e) == ChunkVerdict::kRefused) c.RefuseChunk(e.key, e.reliability, e.sequence);
      }
      void operator()(const event::WindowState& e) { self.OnWindowState(c, e); }
      void operator()(const event::WindowClosed& e) { self.OnWindowClosed(c, e); }
      void operator()(const event::Closed& e) { self.OnClosed(c, e.why); }
      void operator()(const event::Accepted&) {}
      void operator()(const event::HandshakeFailed&) {}
    };
    std::visit(Visitor{*this, connection}, happened);
  }
};

class PumpedEndpoint final : public Endpoint {
 public:
  // Whose an accepted connection is; null refuses it.
  using Accept = std::function<Application*(Connection&)>;

  PumpedEndpoint(EndpointOptions options, Random random, Accept accept = {})
      : Endpoint(std::move(options), random), accept_(std::move(accept)) {}

  Connection* Connect(Instant now, const Address& server, Application* application) {
    Connection* connection = Endpoint::Connect(now, server);
    of_[connection] = application;
    return connection;
  }
  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const ReceiveInfo& info) override {
    Drain();
    Endpoint::HandleDatagram(now, from, datagram, info);
    Drain();
  }
  void HandleTimeout(Instant now) override {
    Endpoint::HandleTimeout(now);
    Drain();
  }
  void HandleSendRefused(Instant now, const Address& destination, size_t bytes) override {
    Endpoint::HandleSendRefused(now, destination, bytes);
    Drain();
  }
  std::optional<Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
    Drain();  // requests since then may have ended connections
    return Endpoint::PollTransmit(now, buffer);
  }
  void Drain() {
    while (const auto happened = PollEvent()) {
      Connection* c = happened->connection;
      if (std::holds_alternative<event::Accepted>(happened->event)) {
        Application* application = accept_ ? accept_(*c) : nullptr;
        if (application == nullptr) {
          c->Close(Status(StatusCode::kUnavailable, "the server takes no connections now"));
        } else {
          of_[c] = application;
        }
      }
      const auto known = of_.find(c);
      if (known == of_.end()) continue;
      Application* application = known->second;
      if (std::holds_alternative<event::Closed>(happened->event)) of_.erase(known);
      application->Handle(*c, happened->event);
    }
  }

 private:
  Accept accept_;
  std::map<Connection*, Application*> of_;
};

}  // namespace longhaul::transport
