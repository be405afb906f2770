// Two endpoints and a WAN between them, in virtual time.
//
//   worker 10.0.0.1  ----- LinkModel each way -----  server 10.0.0.2:7700
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "tests/sim/virtual_network.h"
#include "tests/transport/application.h"

namespace longhaul::transport {

// Records everything that happens on a connection.
class Recorder : public Application {
 public:
  struct Incoming {
    wire::WindowOpenFrame open;
    std::vector<uint8_t> metadata;
    std::map<uint32_t, std::vector<uint8_t>> high, low;
    int repeated_deliveries = 0;
    int repaired = 0;
    int states = 0;
  };
  struct Outgoing {
    wire::CloseReason reason;
    WindowReceipt receipt;
    WindowTxStats stats;
  };

  void OnConnected(Connection& c) override {
    connection = &c;
    ++connected;
  }
  void OnClosed(Connection&, const Status& why) override {
    ++closed;
    close_status = why;
    connection = nullptr;
  }
  void OnControlData(Connection&, ByteSpan bytes) override {
    control.insert(control.end(), bytes.begin(), bytes.end());
    longest_control = std::max(longest_control, bytes.size());
  }
  void OnControlWritable(Connection&) override { ++writable; }
  Status OnWindowOpened(Connection&, WindowKey key, const wire::WindowOpenFrame& open) override {
    if (refuse_windows) return Status(StatusCode::kUnavailable, "not now");
    Incoming& in = incoming[key];
    in.open = open;
    in.metadata.assign(open.metadata.begin(), open.metadata.end());
    in.open.metadata = {};
    return Status::Ok();
  }
  ChunkVerdict OnChunk(Connection&, const event::Chunk& chunk) override {
    const auto& [key, reliability, sequence, bytes, repaired] = chunk;
    Incoming& in = incoming.at(key);
    auto& chunks = reliability == wire::ReliabilityClass::kHigh ? in.high : in.low;
    if (!chunks.emplace(sequence, std::vector<uint8_t>(bytes.begin(), bytes.end())).second)
      ++in.repeated_deliveries;
    if (repaired) ++in.repaired;
    return refuse_chunk && refuse_chunk(key, reliability, sequence) ? ChunkVerdict::kRefused
                                                                    : ChunkVerdict::kTaken;
  }
  void OnWindowState(Connection& c, const event::WindowState& state) override {
    ++incoming.at(state.key).states;
    if (!auto_close) return;
    if (state.window.complete) {
      c.CloseWindow(state.key, wire::CloseReason::kComplete);
    } else if (state.window.high_complete && state.window.sender_finished) {
      c.CloseWindow(state.key, wire::CloseReason::kSoft);
    }
  }
  void OnWindowClosed(Connection&, const event::WindowClosed& window) override {
    outgoing.emplace(window.key, Outgoing{window.reason, *window.receipt, window.stats});
    ++closes[window.key];
  }

  Connection* connection = nullptr;
  int connected = 0;
  int closed = 0;
  int writable = 0;
  bool refuse_windows = false;
  std::function<bool(WindowKey, wire::ReliabilityClass, uint32_t)> refuse_chunk;
  bool auto_close = true;
  Status close_status;
  std::vector<uint8_t> control;
  size_t longest_control = 0;  // bytes at once
  std::map<WindowKey, Incoming> incoming;
  std::map<WindowKey, Outgoing> outgoing;
  std::map<WindowKey, int> closes;  // times that an outgoing window was over
};

class ConnectionPair {
 public:
  struct Options {
    uint64_t seed = 1;
    std::string link = "rate 200mbit delay 25ms queue 50ms";
    ConnectionOptions worker;
    ConnectionOptions server;
    bool server_up = true;
    uint32_t max_connections = 1024;
    // Must outlive the pair; null: none.
    Security* worker_security = nullptr;
    Security* server_security = nullptr;
    AdmissionOptions admission = {};
  };

  explicit ConnectionPair(const Options& options) : network_(NetworkOptions(options)) {
    worker_site_ = network_.AddSite("worker");
    server_site_ = network_.AddSite("server");
    EndpointOptions w;
    w.connection = options.worker;
    w.coder = &coder_;
    w.security = options.worker_security;
    worker_endpoint = std::make_unique<PumpedEndpoint>(w, Random(options.seed * 2 + 1));
    EndpointOptions s;
    s.connection = options.server;
    s.coder = &coder_;
    s.accepts = true;
    s.security = options.server_security;
    s.admission = options.admission;
    s.max_connections = options.max_connections;
    server_endpoint = std::make_unique<PumpedEndpoint>(s, Random(options.seed * 2 + 2),
                                                       [this](Connection&) { return &server; });
    worker_host =
        std::make_unique<sim::SimulatedHost>(&network_, worker_address, worker_site_, worker_endpoint.get());
    if (options.server_up) {
      server_host = std::make_unique<sim::SimulatedHost>(&network_, server_address, server_site_,
                                                         server_endpoint.get());
    }
  }

  void Connect() {
    connection = worker_endpoint->Connect(network_.now(), server_address, &worker);
    worker_host->Pump();
  }
  // Runs until both sides are connected; false after `limit` of virtual time.
  bool Establish(Duration limit = std::chrono::seconds(10)) {
    Connect();
    return RunUntil([this] { return worker.connected > 0 && server.connected > 0; }, limit);
  }
  template <typename Predicate>
  bool RunUntil(Predicate done, Duration limit) {
    const Instant end = network_.now() + limit;
    while (!done()) {
      if (network_.NextEventTime() > end || !network_.Step()) return false;
    }
    return true;
  }
  void RunFor(Duration time) { network_.RunFor(time); }
  Instant now() const { return network_.now(); }

  // The bytes of a test chunk: every byte depends on window, class and number.
  static std::vector<uint8_t> ChunkBytes(WindowKey key, bool high, uint32_t sequence, size_t size) {
    Random random(key.id * 1'000'003ull + key.generation * 7'919'911ull + (high ? 7 : 11) + sequence * 31ull);
    std::vector<uint8_t> bytes(size);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.Next());
    return bytes;
  }

  // Opens a window from the worker and submits all its chunks.
  void SendWindow(WindowKey key, uint32_t high, uint32_t low, uint8_t fec_k = 20,
                  uint16_t symbol_bytes = 1392) {
    SendWindowFrom(*connection, key, high, low, fec_k, symbol_bytes);
    worker_host->Pump();
  }
  void SendWindowFrom(Connection& from, WindowKey key, uint32_t high, uint32_t low, uint8_t fec_k,
                      uint16_t symbol_bytes) {
    const WindowOptions o{.key = key,
                          .high_count = high,
                          .low_count = low,
                          .symbol_bytes = symbol_bytes,
                          .fec_k = fec_k,
                          .metadata = {1, 2, 3}};
    const Status opened = from.OpenWindow(o);
    ASSERT_TRUE(opened.ok()) << opened.ToString();
    auto& store = bodies_[key];
    for (uint32_t i = 0; i < high + low; ++i) {
      const bool is_high = i < high;
      store.push_back(ChunkBytes(key, is_high, is_high ? i : i - high, symbol_bytes));
      const ByteSpan all(store.back());
      const Status submitted =
          from.SubmitChunk(key, is_high ? wire::ReliabilityClass::kHigh : wire::ReliabilityClass::kLow,
                           all.first(12), all.subspan(12));
      ASSERT_TRUE(submitted.ok()) << submitted.ToString();
    }
  }

  // Exactly once, bit-exact, nothing that was not sent.
  void ExpectDelivered(const Recorder& receiver, WindowKey key, uint32_t high, size_t symbol_bytes = 1392) {
    ASSERT_TRUE(receiver.incoming.contains(key));
    const Recorder::Incoming& in = receiver.incoming.at(key);
    EXPECT_EQ(in.repeated_deliveries, 0);
    EXPECT_EQ(in.high.size(), high);
    for (const auto& [sequence, bytes] : in.high) {
      EXPECT_EQ(bytes, ChunkBytes(key, true, sequence, symbol_bytes)) << "high chunk " << sequence;
    }
    for (const auto& [sequence, bytes] : in.low) {
      EXPECT_EQ(bytes, ChunkBytes(key, false, sequence, symbol_bytes)) << "low chunk " << sequence;
    }
  }
  void ExpectNoTimeViolation() {
    EXPECT_EQ(worker_host->violation(), "");
    if (server_host) {
      EXPECT_EQ(server_host->violation(), "");
    }
  }

  wan::VirtualNetwork& network() { return network_; }
  wan::VirtualNetwork::SiteId worker_site() const { return worker_site_; }
  wan::VirtualNetwork::SiteId server_site() const { return server_site_; }

  const Address worker_address = Address::V4(10, 0, 0, 1, 40000);
  const Address server_address = Address::V4(10, 0, 0, 2, 7700);
  Recorder worker, server;
  std::unique_ptr<PumpedEndpoint> worker_endpoint, server_endpoint;
  std::unique_ptr<sim::SimulatedHost> worker_host, server_host;
  Connection* connection = nullptr;

 private:
  static wan::VirtualNetwork::Options NetworkOptions(const Options& options) {
    wan::VirtualNetwork::Options n;
    n.seed = options.seed;
    Result<wan::LinkOptions> link = wan::ParseLinkOptions(options.link);
    n.link = link.value();
    return n;
  }

  codec::ReferenceCoder coder_;
  wan::VirtualNetwork network_;
  wan::VirtualNetwork::SiteId worker_site_ = 0, server_site_ = 0;
  std::map<WindowKey, std::deque<std::vector<uint8_t>>> bodies_;
};

}  // namespace longhaul::transport
