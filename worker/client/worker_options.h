// A worker's options, given when it is made; see longhaul/options.h for the meaning of the job's fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "longhaul/membership.h"
#include "longhaul/units.h"
#include "proto/control_codec.h"
#include "transport/core/connection/connection.h"
#include "worker/client/round_alignment.h"

namespace longhaul::worker {

struct WorkerCoreOptions {
  std::string job = "default";
  std::string site = {};
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::optional<uint64_t> incarnation = {};
  float weight = 1.0f;
  // From Start until the server's Welcome; then failure is kUnavailable.
  Duration connect_timeout = std::chrono::seconds(10);
  // How long Declare, Pull and Barrier wait for other workers; zero: for ever.
  Duration wait_timeout{0};
  // How long a lost server is waited for; zero: not at all. See ConnectOptions.
  Duration reconnect_timeout{0};
  // Asks for the server's address, which may have changed; WorkerCore::SetServer answers. May be empty.
  std::function<void()> ask_address = {};
  // Names this process to a server that was started again; 0: it has no name, and what it had pushed when the
  // server died is not known to have counted.
  uint64_t session = 0;
  // The server's place in the shard map that this worker has; epoch 0: it has none yet.
  uint64_t map_epoch = 0;
  uint32_t server = 0;
  // Takes the map that the first of several servers has sent, each time. May be empty.
  std::function<void(const control::ShardMap&)> on_shard_map = {};
  // Takes which ranks are in, each time that the server says so. May be empty.
  std::function<void(const Membership&)> on_membership = {};
  // Takes what the first server says of a job that goes to other servers (HandOver); answered with
  // AnswerHandOver. Empty: this worker does not go on with others.
  std::function<void(uint32_t phase, uint64_t round)> on_hand_over = {};
  // Shared by the sessions of a worker with several servers; null: the session has its own.
  std::shared_ptr<RoundAlignment> alignment = {};
  // Takes lines for people about what this worker waits for. May be empty.
  std::function<void(const std::string&)> say = {};
  // How long an orderly Leave waits for the server's goodbye before it closes by itself.
  Duration leave_timeout = std::chrono::seconds(2);
  transport::ConnectionOptions connection = {};
  transport::Security* security = nullptr;  // null: none; else it must outlive the core
  // Bounds; what is beyond is refused with kResourceExhausted.
  size_t max_operations = 4096;
  size_t max_tensors = 65536;
  // Gradient windows open at once; more operations wait their turn. Keeps the windows that the server opens
  // in return below the connection's max_open_windows.
  size_t max_active_pushes = 32;
  size_t max_active_pulls = 16;
};

}  // namespace longhaul::worker
