// Drives a sans-I/O core with a socket, a clock and a timer, in one thread:
//
//   readable | deadline | writable | Post   ->  events into the core  ->  a slice of the core's Work
//                                                                      ->  PollTransmit until nothing is left
//                                                                      ->  arm one timer for NextTimeout
//
// It never spins: a core that asks for a time-out in the past is called again after kMinWait, and counted.
// Between two receives at most max_batches_per_turn batches are sent, so that a sender with much to send
// still receives ACKs. Memory that events free goes back to the operating system in slices (base/pages.h).
//
// It measures how long its events take, in CPU time of its thread, so that a busy host does not count.
//
// Thread: everything runs in the thread that calls Run(), except Post() and Stop(), which any thread may
// call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/instant.h"
#include "longhaul/status.h"
#include "transport/core/datagram_core.h"
#include "transport/udp/fault_injector.h"
#include "transport/udp/socket.h"

namespace longhaul::udp {

struct EventLoopOptions {
  size_t max_batches_per_turn = 16;  // of at most 64 KiB each
  size_t max_receives_per_turn = 4;  // of at most DatagramReceiver::kBuffers buffers each
  size_t max_posted = 65536;         // functions that wait to run; more are refused
  // A socket like the loop's, with another port, for a core that wants one; empty: it gets none.
  std::function<Result<UdpSocket>()> open_socket;
};

// Since the loop was made. The socket's own counters are in socket().
struct EventLoopCounters {
  uint64_t turns = 0;               // times that the thread went around: one wake-up, or work left over
  uint64_t datagrams_received = 0;  // handed to the core
  uint64_t receive_batches = 0;
  uint64_t batches_sent = 0;    // PollTransmit results
  uint64_t datagrams_sent = 0;  // in these batches
  uint64_t bytes_sent = 0;
  uint64_t timeouts = 0;  // HandleTimeout calls
  uint64_t timer_wakeups = 0;
  uint64_t would_block = 0;   // times that sending had to wait for the socket
  uint64_t send_refused = 0;  // HandleSendRefused calls
  uint64_t work_slices = 0;   // Work calls
  uint64_t yields = 0;        // turns that ended with more to send or more work
  uint64_t overdue = 0;       // the core wanted a time-out in the past after it had just been called
  uint64_t posted = 0;
  uint64_t post_refused = 0;
  uint64_t ports_taken = 0;
  uint64_t ports_missed = 0;  // times that there was no other socket
  // The longest event: one call into the core, what it sent, or one function. Up to EventLoop::kMeasured more
  // than it took, since short ones are measured together.
  Duration longest_event{0};
};

class EventLoop {
 public:
  using Function = std::function<void()>;
  static constexpr Duration kMinWait = std::chrono::microseconds(50);
  // The clock of the thread's CPU time costs a system call, the other one does not: it is read after so much
  // time.
  static constexpr Duration kMeasured = std::chrono::microseconds(250);

  // `core` and `faults` (null: none) must outlive the loop. Errors: kInternal (no file descriptors left).
  static Result<std::unique_ptr<EventLoop>> Create(transport::DatagramCore* core, UdpSocket socket,
                                                   FaultInjector* faults = nullptr,
                                                   const EventLoopOptions& options = {});
  // REQUIRES: Run() is not running.
  ~EventLoop();

  // Works until Stop(), or until memory runs out in the core or in a function that was posted: then failure()
  // says so, and all that is left to do with the core, which is in the middle of something, is to destroy it.
  // May be called once.
  void Run();
  // Ends Run() soon: what the core wants to send at once (such as CLOSE) still goes out, what the socket or
  // the fault injector holds back does not. Any thread, also a signal callback; idempotent; also before
  // Run().
  void Stop();
  // Runs `fn` on the loop's thread, in the order of the calls of one thread, and lets the core send
  // afterwards. What has not run when the loop stops is destroyed with the loop. `fn` must not throw. Any
  // thread. Errors: kResourceExhausted (max_posted), kFailedPrecondition (stopped); `fn` is destroyed then.
  Status Post(Function fn);

  // --- Questions; from the loop's thread, or when Run() is not running ---
  const UdpSocket& socket() const;
  EventLoopCounters counters() const;  // a copy
  // Ok, or kResourceExhausted.
  const Status& failure() const;

 private:
  struct Impl;
  explicit EventLoop(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::udp
