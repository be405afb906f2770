// A server core and its clients over a network that takes 10 ms each way, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/control_codec.h"
#include "server/server_core.h"
#include "tests/sim/reference_coder.h"
#include "tests/sim/simulated_host.h"
#include "tests/transport/application.h"
#include "wan/link_options.h"

namespace longhaul::server {

// A client that collects control messages and sends those of the test.
struct CoreClient final : transport::Application {
  CoreClient(wan::VirtualNetwork& network, const Address& server, uint16_t port,
             std::unique_ptr<transport::Security> key)
      : security(std::move(key)),
        endpoint(Options(), Random(port)),
        host(&network, Address::V4(10, 0, 0, 2, port), 0, &endpoint),
        connection(endpoint.Connect(network.now(), server, this)) {
    host.Pump();
  }
  transport::EndpointOptions Options() const {
    transport::EndpointOptions options;
    options.security = security.get();
    return options;
  }

  void OnConnected(transport::Connection&) override { connected = true; }
  void OnClosed(transport::Connection&, const Status& why) override { closed = why; }
  void OnControlData(transport::Connection&, ByteSpan bytes) override {
    const auto messages = reader.Append(bytes);
    ASSERT_TRUE(messages.ok());
    heard.insert(heard.end(), messages->begin(), messages->end());
  }
  void Say(const control::ControlMessage& message) {
    ASSERT_TRUE(connection->SendControl(wire::EncodeControlMessage(message)).ok());
    host.Pump();
  }
  // A job of two.
  void Join(uint32_t rank, uint64_t incarnation = 0, const std::string& job = "default") {
    control::ControlMessage message;
    control::Join& join = *message.mutable_join();
    join.set_job(job);
    join.set_rank(rank);
    join.set_world_size(2);
    join.set_incarnation(incarnation);
    join.set_weight(1);
    Say(message);
  }

  std::unique_ptr<transport::Security> security;
  transport::PumpedEndpoint endpoint;
  sim::SimulatedHost host;
  transport::Connection* connection = nullptr;
  wire::ControlReader reader;
  bool connected = false;
  std::optional<Status> closed;
  std::vector<control::ControlMessage> heard;
};

struct CoreNet : testing::Test {
  explicit CoreNet(const ServerCoreOptions& options) : core(options, &coder, Random(7)) {}
  // Their ports count from 1001 on.
  CoreClient& Add(std::unique_ptr<transport::Security> key = nullptr) {
    const auto port = static_cast<uint16_t>(1001 + clients.size());
    return *clients.emplace_back(std::make_unique<CoreClient>(network, host.address(), port, std::move(key)));
  }
  void RunFor(Duration duration) { network.RunFor(duration); }

  codec::ReferenceCoder coder;
  wan::VirtualNetwork network{{.local_link = *wan::ParseLinkOptions("delay 10ms")}};
  ServerCore core;
  sim::SimulatedHost host{&network, Address::V4(10, 0, 0, 1, 7700), network.AddSite("all"), &core};
  std::vector<std::unique_ptr<CoreClient>> clients;
};

}  // namespace longhaul::server
