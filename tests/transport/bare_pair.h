// Two endpoints and nothing between them but a delay and a rule that takes datagrams away: lean, for tests
// that make thousands of connections. Virtual time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/transport/application.h"

namespace longhaul::transport {

class BarePair {
 public:
  // What an application at the end of a connection sees.
  class Application : public transport::Application {
   public:
    void OnConnected(Connection& c) override {
      connection = &c;
      ++connected;
    }
    void OnClosed(Connection&, const Status& why) override {
      connection = nullptr;
      ++closed;
      close_status = why;
    }
    void OnControlData(Connection&, ByteSpan bytes) override { control_bytes += bytes.size(); }
    ChunkVerdict OnChunk(Connection&, const event::Chunk& chunk) override {
      chunk_bytes += chunk.bytes.size();
      return ChunkVerdict::kTaken;
    }
    void OnWindowState(Connection& c, const event::WindowState& state) override {
      if (state.window.complete) c.CloseWindow(state.key, wire::CloseReason::kComplete);
    }
    void OnWindowClosed(Connection&, const event::WindowClosed&) override { ++windows_done; }

    Connection* connection = nullptr;
    int connected = 0;
    int closed = 0;
    int windows_done = 0;
    uint64_t control_bytes = 0;
    uint64_t chunk_bytes = 0;
    Status close_status;
  };

  struct Options {
    uint64_t seed = 1;
    Duration delay = std::chrono::milliseconds(10);
    ConnectionOptions worker, server;
    Security* worker_security = nullptr;
    Security* server_security = nullptr;
    AdmissionOptions admission = {};
    // Number of the datagram over both directions, and whether the worker sent it: true takes it away.
    std::function<bool(int number, bool from_worker, MutableByteSpan datagram)> lost;
    uint32_t max_connections = 1024;  // of the server
  };

  explicit BarePair(const Options& options) : options_(options) {
    EndpointOptions w;
    w.connection = options.worker;
    w.security = options.worker_security;
    worker_endpoint = std::make_unique<PumpedEndpoint>(w, Random(options.seed * 2 + 1));
    EndpointOptions s;
    s.connection = options.server;
    s.security = options.server_security;
    s.admission = options.admission;
    s.accepts = true;
    s.max_connections = options.max_connections;
    server_endpoint = std::make_unique<PumpedEndpoint>(s, Random(options.seed * 2 + 2), [this](Connection&) {
      ++accepted;
      return &server;
    });
    connection = worker_endpoint->Connect(now, server_address, &worker);
    Poll(true);
  }

  // Until `done` or nothing is left to happen before `limit`.
  template <typename Predicate>
  bool RunUntil(Predicate done, Duration limit) {
    const Instant end = now + limit;
    while (!done()) {
      const Instant timer = std::min(worker_endpoint->NextTimeout(), server_endpoint->NextTimeout());
      const Instant arrival = queue_.empty() ? Instant::Infinite() : queue_.front().arrival;
      const Instant next = std::min(timer, arrival);
      if (next > end || next.IsInfinite()) {
        now = std::max(now, end);
        return done();
      }
      now = std::max(now, next);
      if (arrival <= timer) {
        Flight flight = std::move(queue_.front());
        queue_.pop_front();
        Endpoint& to = flight.from_worker ? *server_endpoint : *worker_endpoint;
        to.HandleDatagram(now, flight.from_worker ? worker_address : server_address, flight.bytes, {});
        Poll(!flight.from_worker);
        free_.push_back(std::move(flight.bytes));
      } else {
        worker_endpoint->HandleTimeout(now);
        server_endpoint->HandleTimeout(now);
        Poll(true);
        Poll(false);
      }
    }
    return true;
  }
  void Run(Duration time) {
    RunUntil([] { return false; }, time);
  }
  bool BothConnected() const { return worker.connected > 0 && server.connected > 0; }

  void Poll(bool worker_side) {
    Endpoint& from = worker_side ? *worker_endpoint : *server_endpoint;
    while (const std::optional<Transmit> t = from.PollTransmit(now, Buffer())) {
      for (size_t at = 0; at < t->size; at += t->segment_bytes) {
        const MutableByteSpan one = Buffer().subspan(at, std::min(t->segment_bytes, t->size - at));
        sent_bytes[worker_side ? 0 : 1] += one.size();
        const bool known = t->destination == (worker_side ? server_address : worker_address);
        if ((options_.lost && options_.lost(sent, worker_side, one)) || !known) {
          ++sent;
          continue;
        }
        ++sent;
        std::vector<uint8_t> bytes;
        if (!free_.empty()) {
          bytes = std::move(free_.back());
          free_.pop_back();
        }
        bytes.assign(one.begin(), one.end());
        queue_.push_back({now + options_.delay, worker_side, std::move(bytes)});
      }
    }
  }
  // As if it had come over the network.
  void Inject(bool to_server, const Address& from, std::vector<uint8_t> datagram) {
    (to_server ? *server_endpoint : *worker_endpoint).HandleDatagram(now, from, datagram, {});
    Poll(!to_server);
  }

  const Address worker_address = Address::V4(10, 0, 0, 1, 40000);
  const Address server_address = Address::V4(10, 0, 0, 2, 7700);
  Instant now = Instant::FromNanoseconds(1'000'000'000);
  Application worker, server;
  int accepted = 0;
  int sent = 0;  // datagrams, both ways
  std::array<uint64_t, 2> sent_bytes{};
  std::unique_ptr<PumpedEndpoint> worker_endpoint, server_endpoint;
  Connection* connection = nullptr;

 private:
  struct Flight {
    Instant arrival;
    bool from_worker = false;
    std::vector<uint8_t> bytes;
  };
  static MutableByteSpan Buffer() {
    static std::vector<uint8_t> buffer(65'535);
    return buffer;
  }

  Options options_;
  std::deque<Flight> queue_;
  std::vector<std::vector<uint8_t>> free_;
};

}  // namespace longhaul::transport
