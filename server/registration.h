// A server's connection to the first one of its job (server/registration_core.h), in a thread with a socket
// of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "longhaul/log.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "server/registration_core.h"
#include "transport/keys/load_security.h"
#include "transport/udp/event_loop.h"

namespace longhaul::server {

class Registration {
 public:
  // A first server that is started later is waited for: within that time all servers of a job are up.
  static constexpr Duration kPatience = std::chrono::seconds(60);

  struct Options {
    std::string first_server;   // HOST:PORT
    keys::SecurityChoice keys;  // the server's own
    std::function<void(LogLevel, const std::string&)> log;
    control::ServerJoin join = {};  // but the job
  };

  // Waits for the first server's answer. Errors: as Server::Start.
  static Result<std::unique_ptr<Registration>> Open(const Options& options);
  ~Registration();

  const control::ServerWelcome& welcome() const { return *welcome_; }
  // `end` is called once, on any thread, if this server cannot go on; at once, if it cannot already.
  void OnEnd(std::function<void(const Status&)> end);
  // `hand_over` is called on any thread, maybe more than once, when the first server says that the job goes
  // to other servers; at once, if it has already.
  void OnHandOver(const std::function<void()>& hand_over);
  // The first server hears that this one ends. Any thread.
  void Leave();
  // For the attempts that follow: those before are of keys that the first server may not take any more.
  void SetKeys(std::vector<std::shared_ptr<transport::Security>> keys);

 private:
  explicit Registration(const Options& options) : options_(options) {}
  Status Run();
  void OnAnswer(const Result<control::ServerWelcome>& answer);

  const Options options_;
  keys::LoadedSecurity security_;  // outlives the core
  std::optional<RegistrationCore> core_;
  std::unique_ptr<udp::EventLoop> loop_;
  std::thread thread_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::optional<control::ServerWelcome> welcome_;
  Status failure_;
  std::function<void(const Status&)> end_;
  std::function<void()> hand_over_;
  bool hands_over_ = false;
};

}  // namespace longhaul::server
