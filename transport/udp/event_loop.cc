#include "transport/udp/event_loop.h"

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/inject.h"
#include "base/pages.h"
#include "transport/udp/clock.h"

namespace longhaul::udp {
namespace {

using transport::DatagramCore;
using transport::Transmit;

constexpr size_t kBufferBytes = 65536;
// A timer that is later than an idle host makes it. Round-trip times do not contain how late this host reads,
// so the time-outs that are made of them have no room for it: what waits is read first.
constexpr Duration kLate = std::chrono::milliseconds(2);
// Of a turn, where it is injected: a page fault, a debugger, a neighbour on the core.
constexpr Duration kStall = std::chrono::milliseconds(20);
// While the socket is full the core cannot send, so whatever it is late for (pacing) can wait longer.
constexpr Duration kMinWaitBlocked = std::chrono::milliseconds(1);

// A batch on its way to the socket, with what is left of it.
struct Outbox {
  std::vector<uint8_t> buffer = std::vector<uint8_t>(kBufferBytes);
  Transmit batch;
  size_t offset = 0;

  bool empty() const { return offset == batch.size; }
  ByteSpan rest() const { return ByteSpan(buffer).subspan(offset, batch.size - offset); }
  void Clear() { offset = batch.size = 0; }
  void Load(const Transmit& transmit) {
    batch = transmit;
    offset = 0;
  }
};

size_t DatagramsIn(const Transmit& t) { return (t.size + t.segment_bytes - 1) / t.segment_bytes; }

}  // namespace

struct EventLoop::Impl {
  Impl(DatagramCore* the_core, UdpSocket the_socket, DeadlineTimer the_timer, FaultInjector* faults,
       const EventLoopOptions& the_options);
  ~Impl();

  // Throws std::system_error when Asio cannot watch the descriptors.
  void Watch();

  // --- What wakes the thread ---
  void WaitReadable();
  void WaitWritable();
  void WaitTimer();
  void OnReadable();
  void OnWritable();
  void OnTimer();
  void RunPosted();
  void Continue();
  void TakePort();

  // --- How long events take ---
  void BeginMeasuring();
  void NoteEvent();

  // --- What a turn is made of ---
  void Receive(Instant now);
  void Deliver(Instant now, const Address& from, MutableByteSpan bytes, const transport::ReceiveInfo& info);
  void DeliverDue(Instant now);
  void TimeOut(Instant now);
  void TransmitAll();
  bool TransmitOne();
  void SendDue();
  void GatherDue(Instant now);
  void Abandon();
  void SendOutbox();
  void SubmitFaulty(Instant now, ByteSpan bytes, const Transmit& batch);
  void FinishTurn();

  DatagramCore* core;
  UdpSocket socket;
  EventLoopOptions options;
  FaultyDirection* faulty_in;
  FaultyDirection* faulty_out;

  asio::io_context io{1};
  DeadlineTimer timer;
  asio::posix::stream_descriptor socket_events{io};
  asio::posix::stream_descriptor timer_events{io};

  Outbox outbox;
  std::vector<uint8_t> faulty_buffer;  // what PollTransmit writes before the fault injector has copied it
  bool blocked = false;                // the outbox waits for the socket
  bool more_to_send = false;
  bool continuing = false;   // a Continue() is queued
  bool taking_port = false;  // a TakePort() is queued
  EventLoopCounters counters;
  // When both clocks were read last.
  Instant measured_at;
  Duration measured_cpu{0};
  DeferredUnmap* unmap = nullptr;  // of Run()
  Status failure;

  std::mutex mutex;  // guards the next two
  std::vector<Function> posted;
  bool stopped = false;
  std::atomic<uint64_t> post_refused{0};
};

EventLoop::Impl::Impl(DatagramCore* the_core, UdpSocket the_socket, DeadlineTimer the_timer,
                      FaultInjector* faults, const EventLoopOptions& the_options)
    : core(the_core),
      socket(std::move(the_socket)),
      options(the_options),
      faulty_in(faults != nullptr ? faults->incoming() : nullptr),
      faulty_out(faults != nullptr ? faults->outgoing() : nullptr),
      timer(std::move(the_timer)) {
  if (faulty_out != nullptr) faulty_buffer.resize(kBufferBytes);
}

// Apart from the constructor, so that the destructor runs when Asio throws.
void EventLoop::Impl::Watch() {
  socket_events.assign(socket.fd());
  timer_events.assign(timer.fd());
}

EventLoop::Impl::~Impl() {
  // The descriptors belong to `socket` and `timer`.
  socket_events.release();
  timer_events.release();
}

void EventLoop::Impl::WaitReadable() {
  const auto on_readable = [this, of = counters.ports_taken](const std::error_code& error) {
    if (error || of != counters.ports_taken) return;  // of the socket before
    OnReadable();
    WaitReadable();
  };
  socket_events.async_wait(asio::posix::stream_descriptor::wait_read, on_readable);
}

void EventLoop::Impl::WaitWritable() {
  const auto on_writable = [this, of = counters.ports_taken](const std::error_code& error) {
    if (!error && of == counters.ports_taken) OnWritable();
  };
  socket_events.async_wait(asio::posix::stream_descriptor::wait_write, on_writable);
}

void EventLoop::Impl::WaitTimer() {
  timer_events.async_wait(asio::posix::stream_descriptor::wait_read, [this](const std::error_code& error) {
    if (error) return;
    OnTimer();
    WaitTimer();
  });
}

void EventLoop::Impl::OnReadable() {
  for (size_t i = 0; i < options.max_receives_per_turn; ++i) {
    Receive(Now());
    TransmitAll();
    if (!socket.MayHaveMore()) break;
  }
  FinishTurn();
}

void EventLoop::Impl::OnWritable() {
  blocked = false;
  SendOutbox();
  FinishTurn();
}

void EventLoop::Impl::OnTimer() {
  timer.Acknowledge();
  ++counters.timer_wakeups;
  if (LH_INJECT("loop-stalls")) std::this_thread::sleep_for(kStall);
  FinishTurn();
}

void EventLoop::Impl::RunPosted() {
  std::vector<Function> functions;
  {
    const std::lock_guard lock(mutex);
    functions.swap(posted);
  }
  counters.posted += functions.size();
  for (Function& function : functions) {
    function();
    function = nullptr;  // what it owns goes now, in order
    NoteEvent();
  }
  FinishTurn();
}

// What is still under way to the port before is lost.
void EventLoop::Impl::TakePort() {
  taking_port = false;
  if (!core->WantsPort()) return;  // the peer was heard meanwhile
  Result<UdpSocket> other = options.open_socket();
  if (!other.ok()) {
    ++counters.ports_missed;
    return;
  }
  ++counters.ports_taken;
  socket_events.release();
  socket = *std::move(other);
  socket_events.assign(socket.fd());
  blocked = false;
  WaitReadable();
  core->HandlePort(Now());
  SendOutbox();
  FinishTurn();
}

void EventLoop::Impl::Continue() {
  continuing = false;
  FinishTurn();
}

void EventLoop::Impl::BeginMeasuring() {
  measured_at = Now();
  measured_cpu = ThreadCpuTime();
}

// An event is over, or a wait: what the thread waits for costs it no CPU time.
void EventLoop::Impl::NoteEvent() {
  const Instant now = Now();
  if (now - measured_at < kMeasured) return;
  const Duration cpu = ThreadCpuTime();
  const Duration event = cpu - std::exchange(measured_cpu, cpu);
  measured_at = now;
  if (event <= counters.longest_event) return;
  counters.longest_event = event;
  core->HandleLongestEvent(event);
}

void EventLoop::Impl::Receive(Instant now) {
  const std::span<const ReceivedDatagram> datagrams = socket.Receive();
  if (datagrams.empty()) return;
  ++counters.receive_batches;
  for (const ReceivedDatagram& datagram : datagrams) {
    if (faulty_in != nullptr) {
      faulty_in->Submit(datagram.info.ArrivedBy(now), datagram.from, datagram.bytes, datagram.info);
    } else {
      Deliver(now, datagram.from, datagram.bytes, datagram.info);
    }
  }
  DeliverDue(now);
}

void EventLoop::Impl::Deliver(Instant now, const Address& from, MutableByteSpan bytes,
                              const transport::ReceiveInfo& info) {
  ++counters.datagrams_received;
  core->HandleDatagram(now, from, bytes, info);
  NoteEvent();
}

void EventLoop::Impl::DeliverDue(Instant now) {
  if (faulty_in == nullptr) return;
  while (FaultyDirection::Datagram* datagram = faulty_in->Due(now)) {
    Deliver(now, datagram->peer, datagram->bytes, datagram->info);
    faulty_in->Pop();
  }
}

void EventLoop::Impl::TimeOut(Instant now) {
  if (core->NextTimeout() > now) return;
  // A late host has datagrams waiting: they came before the time-out was run, and may put it off.
  if (now - core->NextTimeout() > kLate) {
    Receive(now);
    if (core->NextTimeout() > now) return;
  }
  ++counters.timeouts;
  core->HandleTimeout(now);
  NoteEvent();
}

void EventLoop::Impl::TransmitAll() {
  more_to_send = false;
  for (size_t i = 0; i < options.max_batches_per_turn; ++i) {
    if (blocked || !TransmitOne()) break;
    more_to_send = i + 1 == options.max_batches_per_turn;
  }
  SendDue();
}

// False when the core has nothing to send.
bool EventLoop::Impl::TransmitOne() {
  // Asked anew for each batch: the pacer and the delivery rate depend on when it really leaves.
  const Instant now = Now();
  std::vector<uint8_t>& buffer = faulty_out != nullptr ? faulty_buffer : outbox.buffer;
  const std::optional<Transmit> batch = core->PollTransmit(now, buffer);
  if (!batch) return false;
  LH_CHECK_OP(batch->segment_bytes, >, 0u);
  LH_CHECK_OP(batch->size, >, 0u);
  LH_CHECK_OP(batch->size, <=, buffer.size());
  ++counters.batches_sent;
  counters.datagrams_sent += DatagramsIn(*batch);
  counters.bytes_sent += batch->size;
  if (faulty_out != nullptr) {
    SubmitFaulty(now, ByteSpan(buffer).first(batch->size), *batch);
  } else {
    outbox.Load(*batch);
    SendOutbox();
  }
  NoteEvent();
  return true;
}

void EventLoop::Impl::SubmitFaulty(Instant now, ByteSpan bytes, const Transmit& batch) {
  for (size_t at = 0; at < bytes.size(); at += batch.segment_bytes) {
    const size_t size = std::min(batch.segment_bytes, bytes.size() - at);
    transport::ReceiveInfo mark;
    mark.ecn_ect0 = batch.ect0;
    faulty_out->Submit(now, batch.destination, bytes.subspan(at, size), mark);
  }
}

void EventLoop::Impl::SendDue() {
  if (faulty_out == nullptr) return;
  const Instant now = Now();
  while (!blocked && faulty_out->Due(now) != nullptr) {
    GatherDue(now);
    SendOutbox();
  }
}

// Fills the empty outbox with a run of due datagrams of one size for one destination.
void EventLoop::Impl::GatherDue(Instant now) {
  outbox.Clear();
  Transmit& batch = outbox.batch;
  size_t count = 0;
  while (FaultyDirection::Datagram* datagram = faulty_out->Due(now)) {
    const size_t size = datagram->bytes.size();
    if (count == 0) {
      batch.destination = datagram->peer;
      batch.segment_bytes = size;
      batch.ect0 = datagram->info.ecn_ect0;
    }
    const bool fits = size <= batch.segment_bytes && batch.size + size <= kMaxBatchBytes &&
                      count < kMaxSegments && datagram->peer == batch.destination &&
                      datagram->info.ecn_ect0 == batch.ect0;
    if (!fits) break;
    std::memcpy(outbox.buffer.data() + batch.size, datagram->bytes.data(), size);
    batch.size += size;
    ++count;
    faulty_out->Pop();
    if (size < batch.segment_bytes) break;  // only the last may be shorter
  }
}

void EventLoop::Impl::SendOutbox() {
  if (outbox.empty()) return;
  const Transmit& batch = outbox.batch;
  const SendResult result = socket.Send(batch.destination, outbox.rest(), batch.segment_bytes, batch.ect0);
  outbox.offset += result.done_bytes;
  switch (result.outcome) {
    case SendOutcome::kDone:
      break;
    case SendOutcome::kWouldBlock:
      ++counters.would_block;
      blocked = true;
      WaitWritable();
      break;
    case SendOutcome::kTooBig: {
      const size_t refused = std::min(batch.segment_bytes, outbox.rest().size());
      const Address destination = batch.destination;
      outbox.Clear();
      ++counters.send_refused;
      more_to_send = true;  // the core may cut it smaller
      core->HandleSendRefused(Now(), destination, refused);
      break;
    }
  }
}

// Ends every turn: runs what is due and a slice of the core's work, sends what the core has, arms the timer.
void EventLoop::Impl::FinishTurn() {
  ++counters.turns;
  const Instant now = Now();
  DeliverDue(now);
  TimeOut(now);
  if (core->HasWork()) {
    ++counters.work_slices;
    core->Work(Now());
    NoteEvent();
  }
  if (unmap != nullptr && unmap->HasWork()) {
    unmap->Slice();
    NoteEvent();
  }
  TransmitAll();
  if ((more_to_send || core->HasWork() || (unmap != nullptr && unmap->HasWork())) && !continuing) {
    // Behind whatever is ready by now, so that receiving gets its turn.
    ++counters.yields;
    continuing = true;
    asio::post(io, [this] { Continue(); });
  }
  if (core->WantsPort() && options.open_socket && !taking_port) {
    taking_port = true;
    asio::post(io, [this] { TakePort(); });  // in no handler of the socket that it replaces
  }
  Instant wake = core->NextTimeout();
  const Instant earliest = Now() + (blocked ? kMinWaitBlocked : kMinWait);
  if (wake <= now && !blocked && !continuing) ++counters.overdue;
  if (faulty_in != nullptr) wake = std::min(wake, faulty_in->NextDue());
  if (faulty_out != nullptr && !blocked) wake = std::min(wake, faulty_out->NextDue());
  timer.Arm(std::max(wake, earliest));
}

EventLoop::EventLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventLoop::~EventLoop() = default;

Result<std::unique_ptr<EventLoop>> EventLoop::Create(DatagramCore* core, UdpSocket socket,
                                                     FaultInjector* faults, const EventLoopOptions& options) {
  Result<DeadlineTimer> timer = DeadlineTimer::Create();
  if (!timer) return timer.status();
  try {
    auto impl = std::make_unique<Impl>(core, std::move(socket), std::move(*timer), faults, options);
    impl->Watch();
    return std::unique_ptr<EventLoop>(new EventLoop(std::move(impl)));
  } catch (const std::system_error& error) {  // Asio throws when epoll is not available
    return Status(StatusCode::kInternal, std::string("the event loop cannot start: ") + error.what());
  }
}

void EventLoop::Run() {
  DeferredUnmap unmap;
  impl_->unmap = &unmap;
  impl_->BeginMeasuring();
  try {
    impl_->WaitReadable();
    impl_->WaitTimer();
    impl_->FinishTurn();
    impl_->io.run();
  } catch (const std::bad_alloc&) {
    impl_->Abandon();
  }
  impl_->unmap = nullptr;
}

// The core is in the middle of something. What was posted for it ends here.
void EventLoop::Impl::Abandon() {
  failure = Status(StatusCode::kResourceExhausted, "out of memory");
  std::vector<Function> functions;
  {
    const std::lock_guard lock(mutex);
    stopped = true;
    functions.swap(posted);
  }
}

void EventLoop::Stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopped) return;
    impl_->stopped = true;
  }
  // Behind what was posted before; its FinishTurn and this one let the core send its CLOSE.
  try {
    asio::post(impl_->io, [impl = impl_.get()] {
      impl->FinishTurn();
      impl->io.stop();
    });
  } catch (const std::bad_alloc&) {  // without the core's last words
    impl_->io.stop();
  }
}

Status EventLoop::Post(Function fn) {
  try {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopped) return Status(StatusCode::kFailedPrecondition, "the event loop has stopped");
    if (impl_->posted.size() >= impl_->options.max_posted) {
      impl_->post_refused.fetch_add(1, std::memory_order_relaxed);
      return Status(StatusCode::kResourceExhausted, "too many functions wait for the event loop");
    }
    // The wake-up first: a function behind one that never came would wait for ever.
    if (impl_->posted.size() == impl_->posted.capacity())
      impl_->posted.reserve(2 * impl_->posted.size() + 16);
    if (impl_->posted.empty()) asio::post(impl_->io, [impl = impl_.get()] { impl->RunPosted(); });
    impl_->posted.push_back(std::move(fn));
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "out of memory"};
  }
}

const UdpSocket& EventLoop::socket() const { return impl_->socket; }
const Status& EventLoop::failure() const { return impl_->failure; }

EventLoopCounters EventLoop::counters() const {
  EventLoopCounters out = impl_->counters;
  out.post_refused = impl_->post_refused.load(std::memory_order_relaxed);
  return out;
}

}  // namespace longhaul::udp
