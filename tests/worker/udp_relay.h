// A path over the loopback that a test cuts.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/udp/resolve.h"
#include "transport/udp/socket.h"

namespace longhaul {

// In a thread. Each port of a client has one towards the server.
class Relay {
 public:
  explicit Relay(const std::string& server) : Relay() { Lead(server); }
  // Drops everything until it knows where it leads.
  Relay() : front_(OpenLoopback()), thread_([this] { Run(); }) {}
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return front_.local_address().ToString(); }
  void Lead(const std::string& server) {
    const std::lock_guard lock(mutex_);
    server_ = *udp::ResolvePeer(server);
  }
  // The ports that it has seen so far are dead from now on.
  void Block() { block_ = true; }
  // Of the ports in the order in which they came, only so many carry anything from now on.
  void Keep(size_t ports) { kept_ = ports; }
  size_t ports() const { return ports_; }

 private:
  static udp::UdpSocket OpenLoopback() {
    return std::move(udp::UdpSocket::Open(Address::V4(127, 0, 0, 1, 0))).value();
  }

  void Run() {
    while (!stop_) {
      std::vector<pollfd> wait = {{front_.fd(), POLLIN, 0}};
      for (const auto& [client, back] : backs_) wait.push_back({back.fd(), POLLIN, 0});
      ::poll(wait.data(), wait.size(), 10);
      if (block_.exchange(false)) {
        for (const auto& [client, back] : backs_) blocked_.insert(client);
      }
      const std::optional<Address> server = Server();
      for (const udp::ReceivedDatagram& datagram : front_.Receive()) {
        if (!server) continue;
        const auto [at, fresh] = backs_.try_emplace(datagram.from.port, OpenLoopback());
        if (fresh) order_.push_back(datagram.from.port);
        ports_ = backs_.size();
        if (Carries(at->first)) at->second.Send(*server, datagram.bytes, datagram.bytes.size());
      }
      for (auto& [client, back] : backs_) {
        for (const udp::ReceivedDatagram& datagram : back.Receive()) {
          if (!Carries(client)) continue;
          front_.Send(Address::V4(127, 0, 0, 1, client), datagram.bytes, datagram.bytes.size());
        }
      }
    }
  }

  bool Carries(uint16_t client) const {
    const auto place = static_cast<size_t>(std::ranges::find(order_, client) - order_.begin());
    return !blocked_.contains(client) && place < kept_;
  }
  std::optional<Address> Server() {
    const std::lock_guard lock(mutex_);
    return server_;
  }

  std::mutex mutex_;
  std::optional<Address> server_;
  udp::UdpSocket front_;
  std::map<uint16_t, udp::UdpSocket> backs_;  // by the client's port
  std::set<uint16_t> blocked_;
  std::vector<uint16_t> order_;
  std::atomic<size_t> kept_ = SIZE_MAX;
  std::atomic<size_t> ports_ = 0;
  std::atomic<bool> block_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace longhaul
