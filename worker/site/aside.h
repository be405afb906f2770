// Calls that wait, on threads of their own; what they find goes back to the thread that asked.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace longhaul::site {

class Aside {
 public:
  // A client has at most 64 barriers open; declarations go one at a time.
  static constexpr size_t kMost = 80;

  // wake: after each Done, on any thread.
  explicit Aside(std::function<void()> wake) : wake_(std::move(wake)) {}
  // Waits for those that still run.
  ~Aside() {
    for (Call& call : calls_) call.thread.join();
  }

  // `call` runs on a thread of its own. False: too many do.
  bool Run(std::function<void()> call);
  // To run on the thread that calls RunDone. Any thread.
  void Done(std::function<void()> what);
  void RunDone();

 private:
  struct Call {
    std::thread thread;
    std::shared_ptr<bool> over;  // guarded by the lock
  };
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<std::function<void()>> done_;
  std::vector<Call> calls_;  // of the thread that asks
};

}  // namespace longhaul::site
