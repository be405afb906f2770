// The thread that carries packets between the sites: reads from each site's TUN descriptor, asks the directed
// link what happens, and writes to the other site's descriptor when the packet is due.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "wan/link_model.h"
#include "wan/tun/delivery_queue.h"
#include "wan/tun/lateness.h"

namespace longhaul::wan {

// What the forwarder did that is not a link's decision.
struct ForwarderStats {
  uint64_t packets_read = 0;
  uint64_t packets_written = 0;
  uint64_t not_ipv4 = 0;      // ignored
  uint64_t no_route = 0;      // to an address of no other site
  uint64_t overload = 0;      // dropped since max_packets_in_flight was reached: not the link's decision
  uint64_t write_errors = 0;  // the kernel refused a packet that was due
  size_t in_flight = 0;
  size_t max_in_flight = 0;
  Lateness lateness;     // how long after its due time a packet was written
  Duration cpu_time{0};  // of the thread
  Duration uptime{0};
  bool realtime = false;  // the thread got a real-time priority
};

class Forwarder {
 public:
  struct Options {
    size_t max_packets_in_flight = 65536;
    size_t max_packet_size = 2048;
    // Ask for SCHED_FIFO, so that busy neighbours do not make packets late. Harmless where it is refused.
    bool realtime = true;
    // Site k owns base_address + (k + 1) * 256 .. + 255.
    uint32_t base_address = (10u << 24) | (77u << 16);
  };

  // `links[from * sites + to]`; the diagonal is never used. The descriptors stay the caller's, must be
  // non-blocking and outlive the forwarder.
  Forwarder(std::vector<int> descriptors, std::vector<LinkModel> links, Options options);
  ~Forwarder();

  void Start();
  // Packets in flight are forgotten. Counters can be read afterwards. Idempotent.
  void Stop();

  // These may be called from any thread; they run between two packets of the forwarder.
  LinkCounters Counters(size_t from, size_t to);
  LinkOptions Link(size_t from, size_t to);
  // REQUIRES: options.Validate().ok(). Outages count from Start().
  void SetLink(size_t from, size_t to, const LinkOptions& options);
  Duration QueueDelay(size_t from, size_t to);
  ForwarderStats Stats();

 private:
  void Run();
  void RaisePriority();
  Instant Now() const;
  void DeliverDue();
  // Reads up to a batch; false when the descriptor is drained.
  bool ReadFrom(size_t site);
  void Route(size_t from, uint32_t slot, size_t size);
  void Carry(size_t from, size_t to, uint32_t slot, size_t size);
  void Enqueue(const Delivery& delivery, size_t to, uint32_t slot, size_t size);
  void Write(const DeliveryQueue::Item& item, Instant now);
  // Sleeps until something is due, readable, or wanted; sets ready_.
  void Wait();
  // Runs `work` on the thread, or here when it does not run, and waits for it.
  void OnThread(const std::function<void()>& work);
  void RunRequests();
  LinkModel& At(size_t from, size_t to) { return links_[from * descriptors_.size() + to]; }

  Options options_;
  std::vector<int> descriptors_;
  std::vector<LinkModel> links_;
  DeliveryQueue queue_;
  std::vector<bool> ready_;
  ForwarderStats stats_;
  int64_t epoch_ns_ = 0;

  FileDescriptor wake_;  // an eventfd
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards requests_ and running_
  std::vector<std::packaged_task<void()>> requests_;
  bool running_ = false;
};

}  // namespace longhaul::wan
