// Drives a DatagramCore in virtual time: what transport/udp does with sockets, this does with a
// VirtualNetwork. Also a checker: a core whose timer stays in the past, or that never stops sending, is a
// bug.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/virtual_network.h"
#include "transport/core/datagram_core.h"

namespace longhaul::sim {

class SimulatedHost final : public wan::VirtualNetwork::Host {
 public:
  // Batches that one Pump may send; a core that wants more at one instant is taken to be stuck in a loop.
  static constexpr int kMaxBatchesPerPump = 20'000;
  static constexpr int kMaxSlicesPerPump = 100'000;
  // Datagrams that a socket's buffer holds while its process stands still.
  static constexpr size_t kSocketBuffer = 500;

  SimulatedHost(wan::VirtualNetwork* network, const Address& address, wan::VirtualNetwork::SiteId site,
                transport::DatagramCore* core)
      : network_(network), address_(address), core_(core), alive_(std::make_shared<bool>(true)) {
    buffer_.resize(65'535);
    network_->Attach(address_, site, this);
  }
  ~SimulatedHost() override { Kill(); }

  // The process dies: no farewell, its address is unreachable.
  void Kill() {
    if (!*alive_) return;
    *alive_ = false;
    network_->Detach(address_);
  }

  const Address& address() const { return address_; }
  // What went wrong in the core's dealings with time, empty when nothing did.
  const std::string& violation() const { return violation_; }

  void OnDatagram(Instant now, const Address& from, MutableByteSpan datagram) override {
    OnEcnDatagram(now, from, datagram, wan::Ecn::kNotEct);
  }
  void OnEcnDatagram(Instant now, const Address& from, MutableByteSpan datagram, wan::Ecn ecn) override {
    transport::ReceiveInfo info;
    info.ecn_ce = ecn == wan::Ecn::kCe;
    info.ecn_ect0 = ecn == wan::Ecn::kEct0;
    if (paused()) {
      // As the kernel does: what does not fit into the socket's buffer is dropped, and counted there.
      info.received = now;
      if (waiting_.size() < kSocketBuffer)
        waiting_.push_back({from, {datagram.begin(), datagram.end()}, info});
      else
        ++host_drops_;
      return;
    }
    info.host_drops = host_drops_;
    core_->HandleDatagram(now, from, datagram, info);
    Pump();
  }

  // The process stands still for this long: no event, no timer, nothing sent. Then everything at once, what
  // its timers want first or what has arrived.
  void Pause(Duration time, bool timers_first) {
    if (!*alive_ || paused()) return;
    resumes_ = network_->now() + time;
    pauses_ += time;
    network_->Schedule(resumes_, [this, timers_first, alive = alive_] {
      if (*alive) Resume(timers_first);
    });
  }
  bool paused() const { return network_->now() < resumes_; }
  Instant resumes() const { return resumes_; }
  // Together, so far.
  Duration pauses() const { return pauses_; }

  // From now on the peers see it at another address; what is on its way to the old one is lost.
  void Rebind(const Address& address, wan::VirtualNetwork::SiteId site) {
    if (!*alive_) return;
    network_->Detach(address_);
    address_ = address;
    network_->Attach(address_, site, this);
  }

  // Sends what the core wants to send and arms its timer. To be called after every request to the core.
  void Pump() {
    if (!*alive_ || paused()) return;
    const Instant now = network_->now();
    for (int round = 0;; ++round) {
      int batches = 0;
      for (int slices = 0; core_->HasWork(); ++slices) {
        if (slices > kMaxSlicesPerPump) {
          violation_ = "the core's work does not end at one instant";
          return;
        }
        core_->Work(now);
      }
      while (std::optional<transport::Transmit> t = core_->PollTransmit(now, buffer_)) {
        for (size_t at = 0; at < t->size; at += t->segment_bytes) {
          network_->Send(address_, t->destination,
                         ByteSpan(buffer_).subspan(at, std::min(t->segment_bytes, t->size - at)),
                         t->ect0 ? wan::Ecn::kEct0 : wan::Ecn::kNotEct);
        }
        if (++batches > kMaxBatchesPerPump) {
          violation_ = "the core does not stop sending at one instant";
          return;
        }
      }
      if (core_->NextTimeout() > now) break;
      if (round > 100) {
        violation_ = "the core's timer stays in the past";
        return;
      }
      core_->HandleTimeout(now);
    }
    Arm();
  }

 private:
  void Arm() {
    const Instant at = core_->NextTimeout();
    if (at.IsInfinite() || at == armed_) return;
    armed_ = at;
    network_->Schedule(at, [this, at, alive = alive_] {
      if (!*alive || at != armed_ || paused()) return;
      armed_ = Instant::Infinite();
      core_->HandleTimeout(network_->now());
      Pump();
    });
  }

  struct Waiting {
    Address from;
    std::vector<uint8_t> bytes;
    transport::ReceiveInfo info;
  };

  void Resume(bool timers_first) {
    armed_ = Instant::Infinite();
    const Instant now = network_->now();
    if (timers_first && core_->NextTimeout() <= now) core_->HandleTimeout(now);
    for (Waiting& datagram : std::exchange(waiting_, {})) {
      datagram.info.host_drops = host_drops_;
      core_->HandleDatagram(now, datagram.from, datagram.bytes, datagram.info);
    }
    Pump();
  }

  wan::VirtualNetwork* network_;
  Address address_;
  transport::DatagramCore* core_;
  std::shared_ptr<bool> alive_;
  std::vector<uint8_t> buffer_;
  std::vector<Waiting> waiting_;  // while the process stands still
  uint64_t host_drops_ = 0;
  Instant resumes_;
  Duration pauses_{0};
  Instant armed_ = Instant::Infinite();
  std::string violation_;
};

}  // namespace longhaul::sim
