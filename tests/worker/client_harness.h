// An embedded server on the loopback and clients of it.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "longhaul/client.h"
#include "longhaul/server.h"

namespace longhaul {

inline Server StartServer(uint32_t workers, ServerOptions options = {}) {
  options.listen = "127.0.0.1:0";
  options.insecure = true;
  options.workers = workers;
  Result<Server> server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return *std::move(server);
}

// Nothing is lost, whatever the machine does: on a busy one a window may close without its last low chunks.
inline ServerOptions EverythingReliable() {
  ServerOptions options;
  options.job_spec.high_share = 1;
  return options;
}

inline ConnectOptions OptionsFor(const Server& server, uint32_t rank, uint32_t world_size) {
  ConnectOptions options;
  options.servers = {server.address()};
  options.rank = rank;
  options.world_size = world_size;
  options.insecure = true;
  return options;
}

inline Client MustConnect(const ConnectOptions& options) {
  Result<Client> client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  return *std::move(client);
}

}  // namespace longhaul
