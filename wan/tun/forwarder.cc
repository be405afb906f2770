#include "wan/tun/forwarder.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace longhaul::wan {
namespace {

// Small enough that a due packet does not wait long behind reading.
constexpr int kReadBatch = 16;

int64_t ClockNanoseconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The destination of an IPv4 packet, or 0 when it is none.
uint32_t Ipv4Destination(ByteSpan packet) {
  if (packet.size() < 20 || packet[0] >> 4 != 4) return 0;
  return ByteReader(packet.subspan(16, 4)).U32();
}

}  // namespace

Forwarder::Forwarder(std::vector<int> descriptors, std::vector<LinkModel> links, Options options)
    : options_(options),
      descriptors_(std::move(descriptors)),
      links_(std::move(links)),
      queue_(options.max_packets_in_flight, options.max_packet_size),
      ready_(descriptors_.size(), false),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  LH_CHECK_OP(links_.size(), ==, descriptors_.size() * descriptors_.size());
  LH_CHECK(wake_.valid());
}

Forwarder::~Forwarder() { Stop(); }

void Forwarder::Start() {
  LH_CHECK(!thread_.joinable());
  epoch_ns_ = ClockNanoseconds(CLOCK_MONOTONIC);
  stop_ = false;
  running_ = true;
  // Signals belong to the process that embeds this, not to its data path.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Forwarder::Stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

Instant Forwarder::Now() const {
  return Instant::FromNanoseconds(ClockNanoseconds(CLOCK_MONOTONIC) - epoch_ns_);
}

void Forwarder::RaisePriority() {
  prctl(PR_SET_NAME, "longhaul-wan");
  prctl(PR_SET_TIMERSLACK, 1);  // the default of 50 us would be most of the lateness
  if (!options_.realtime) return;
  const sched_param lowest{.sched_priority = 1};
  stats_.realtime = pthread_setschedparam(pthread_self(), SCHED_FIFO, &lowest) == 0;
}

void Forwarder::Run() {
  RaisePriority();
  while (!stop_) {
    RunRequests();
    DeliverDue();
    for (size_t site = 0; site < descriptors_.size(); ++site) {
      if (ready_[site]) ready_[site] = ReadFrom(site);
    }
    Wait();
  }
  stats_.uptime = Now() - Instant();
  stats_.cpu_time = Duration(ClockNanoseconds(CLOCK_THREAD_CPUTIME_ID));
  // Requests from before running_ became false are still answered; no other gets in between.
  const std::lock_guard lock(mutex_);
  running_ = false;
  for (auto& request : requests_) request();
  requests_.clear();
}

void Forwarder::Wait() {
  pollfd polls[65];
  const size_t sites = descriptors_.size();
  for (size_t i = 0; i < sites; ++i) polls[i] = {.fd = descriptors_[i], .events = POLLIN, .revents = 0};
  polls[sites] = {.fd = wake_.get(), .events = POLLIN, .revents = 0};
  const bool busy = std::ranges::find(ready_, true) != ready_.end();
  timespec timeout{};
  const Instant due = queue_.NextDue();
  if (!busy && !due.IsInfinite()) {
    const int64_t wait = std::max<int64_t>((due - Now()).count(), 0);
    timeout = {.tv_sec = wait / 1'000'000'000, .tv_nsec = wait % 1'000'000'000};
  }
  const bool forever = !busy && due.IsInfinite();
  if (ppoll(polls, static_cast<nfds_t>(sites + 1), forever ? nullptr : &timeout, nullptr) <= 0) return;
  for (size_t i = 0; i < sites; ++i) ready_[i] = ready_[i] || (polls[i].revents & POLLIN) != 0;
  if ((polls[sites].revents & POLLIN) != 0) {
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
  }
}

bool Forwarder::ReadFrom(size_t site) {
  for (int i = 0; i < kReadBatch; ++i) {
    DeliverDue();
    const std::optional<uint32_t> slot = queue_.Acquire();
    uint8_t spare[1];
    const MutableByteSpan buffer = slot ? queue_.Buffer(*slot) : MutableByteSpan(spare);
    const ssize_t size =
        read(descriptors_[site], buffer.data(), buffer.size());  // truncates what does not fit
    if (size <= 0) {
      if (slot) queue_.Release(*slot);
      return size < 0 && errno == EINTR;
    }
    ++stats_.packets_read;
    if (!slot) {
      ++stats_.overload;
      continue;
    }
    Route(site, *slot, static_cast<size_t>(size));
  }
  return true;
}

void Forwarder::Route(size_t from, uint32_t slot, size_t size) {
  const uint32_t destination = Ipv4Destination(queue_.Buffer(slot).first(size));
  const uint64_t to = uint64_t{(destination - options_.base_address) >> 8} - 1;
  if (destination == 0 || to >= descriptors_.size() || to == from) {
    ++(destination == 0 ? stats_.not_ipv4 : stats_.no_route);
    queue_.Release(slot);
    return;
  }
  Carry(from, to, slot, size);
}

void Forwarder::Carry(size_t from, size_t to, uint32_t slot, size_t size) {
  const Verdict verdict = At(from, to).Decide(Now(), ByteCount(static_cast<int64_t>(size)));
  // The copy first: enqueueing the original may corrupt it in place.
  if (verdict.count == 2) {
    if (const auto copy = queue_.Acquire()) {
      std::ranges::copy(queue_.Buffer(slot).first(size), queue_.Buffer(*copy).begin());
      Enqueue(verdict.slots[1], to, *copy, size);
    } else {
      ++stats_.overload;
    }
  }
  if (verdict.count == 0) return queue_.Release(slot);
  Enqueue(verdict.slots[0], to, slot, size);
}

void Forwarder::Enqueue(const Delivery& delivery, size_t to, uint32_t slot, size_t size) {
  if (delivery.corrupted) {
    uint8_t& byte = queue_.Buffer(slot)[delivery.corrupt_bit / 8];
    byte = static_cast<uint8_t>(byte ^ (1u << (delivery.corrupt_bit % 8)));
  }
  queue_.Push(delivery.time, slot, static_cast<uint32_t>(to), size);
  stats_.max_in_flight = std::max(stats_.max_in_flight, queue_.size());
}

void Forwarder::DeliverDue() {
  while (!queue_.empty()) {
    const Instant now = Now();
    if (queue_.NextDue() > now) return;
    Write(queue_.Pop(), now);
  }
}

void Forwarder::Write(const DeliveryQueue::Item& item, Instant now) {
  stats_.lateness.Record(now - item.due);
  const ssize_t written = write(descriptors_[item.destination], queue_.Buffer(item.slot).data(), item.size);
  ++(written == static_cast<ssize_t>(item.size) ? stats_.packets_written : stats_.write_errors);
  queue_.Release(item.slot);
}

void Forwarder::OnThread(const std::function<void()>& work) {
  std::future<void> done;
  {
    const std::unique_lock lock(mutex_);
    if (!running_) return work();  // under the lock, so that two callers do not meet
    done = requests_.emplace_back(work).get_future();
  }
  eventfd_write(wake_.get(), 1);
  done.wait();
}

void Forwarder::RunRequests() {
  std::vector<std::packaged_task<void()>> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (auto& request : requests) request();
}

LinkCounters Forwarder::Counters(size_t from, size_t to) {
  LinkCounters out;
  OnThread([&] { out = At(from, to).counters(); });
  return out;
}

LinkOptions Forwarder::Link(size_t from, size_t to) {
  LinkOptions out;
  OnThread([&] { out = At(from, to).options(); });
  return out;
}

void Forwarder::SetLink(size_t from, size_t to, const LinkOptions& options) {
  OnThread([&] { At(from, to).SetOptions(options); });
}

Duration Forwarder::QueueDelay(size_t from, size_t to) {
  Duration out{0};
  OnThread([&] { out = At(from, to).QueueDelay(Now()); });
  return out;
}

ForwarderStats Forwarder::Stats() {
  ForwarderStats out;
  OnThread([&] {
    out = stats_;
    out.in_flight = queue_.size();
    if (stop_) return;
    out.uptime = Now() - Instant();
    out.cpu_time = Duration(ClockNanoseconds(CLOCK_THREAD_CPUTIME_ID));
  });
  return out;
}

}  // namespace longhaul::wan
