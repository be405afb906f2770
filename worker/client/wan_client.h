// A worker's own connection to one parameter server: a WorkerCore in a thread with a socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/client/client_impl.h"
#include "worker/client/round_alignment.h"

namespace longhaul::internal {

// What a worker hears of its first server while others may take the job over. Called on a client's thread.
struct ServerHooks {
  std::function<void(uint32_t phase, uint64_t round)> on_hand_over = {};  // control.HandOver
  std::function<void()> on_lost = {};                                     // and waited for
  // One of several tries. When it comes to nothing, a server that has let this worker in, and may have
  // started the job with it, is to take the next try for the same worker: not a word is said.
  bool tries_again = false;
};

class ServerClient : public ClientImpl {
 public:
  struct Options {
    ConnectOptions connect;
    // The server's place in the shard map; epoch 0: of a worker that has none yet.
    uint64_t map_epoch = 0;
    uint32_t server = 0;
    std::shared_ptr<worker::RoundAlignment> alignment = {};  // of all the worker's servers
    // All on the client's thread; may be empty. The client has failed; the addresses of all servers, whenever
    // the first one says them, "" for its own.
    std::function<void(const Status&)> on_failed = {};
    std::function<void(const std::vector<std::string>&)> on_servers = {};
    ServerHooks hooks = {};  // of the first server's
  };

  // Begins to join. Errors as of Client::Connect. REQUIRES: CheckOptions(options.connect) is Ok.
  static Result<std::shared_ptr<ServerClient>> Start(const Options& options);
  // Ok: the server has let this worker in. Ends by itself, after connect_timeout.
  virtual Status WaitUntilJoined() = 0;
  // After an error of WaitUntilJoined: where workers have to go instead, or "".
  virtual std::string first_server() = 0;
  // Of the shard map that came with Welcome: its epoch and the servers' addresses. 0 and none: there is one
  // server.
  virtual std::pair<uint64_t, std::vector<std::string>> shard_map() = 0;

  // Declare that does not wait. `tensor` is set when the operation has ended well.
  virtual Operation BeginDeclare(const std::string& name, const TensorOptions& options,
                                 std::shared_ptr<Tensor> tensor) = 0;
  // As Leave(why), but waits for nothing. Any thread.
  virtual void BeginLeave(const Status& why) = 0;
  // Where the server is looked for when it is lost. Any thread.
  virtual void SetAddress(const std::string& server) = 0;

 protected:
  using ClientImpl::ClientImpl;
};

// Adds what another client, or this one at other servers, has counted.
void AddClientCounts(const ClientStats& other, ClientStats* sum);

// To the servers of the job of which `options.servers` names one, any of them
// (worker/client/sharded_client.cc). Errors as of Client::Connect. REQUIRES: CheckOptions(options) is Ok.
Result<std::shared_ptr<ClientImpl>> ConnectToTheseServers(const ConnectOptions& options,
                                                          const ServerHooks& hooks);

// Goes on with other servers when the job does, where a lost server is waited for (reconnect_timeout;
// worker/client/moving_client.cc). Otherwise the same.
Result<std::shared_ptr<ClientImpl>> ConnectToServers(const ConnectOptions& options);

}  // namespace longhaul::internal
