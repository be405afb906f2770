#include "tests/offload/rank_arrays.h"

#include <poll.h>

#include <chrono>
#include <numeric>

namespace longhaul::offload {
namespace {
using Clock = std::chrono::steady_clock;
}

Completion NextOf(Device& device) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  Completion completion;
  while (device.Poll({&completion, 1}) == 0) {
    EXPECT_TRUE(device.RequestNotify().ok());
    pollfd wait{device.fd(), POLLIN, 0};
    poll(&wait, 1, 1000);
    if (Clock::now() > end) {
      ADD_FAILURE() << "no completion";
      return {};
    }
  }
  return completion;
}

RankArrays::RankArrays(Device& of, size_t elements, int32_t value)
    : device(&of), send(elements), receive(elements) {
  std::iota(send.begin(), send.end(), value);
  send_key = of.Register(std::as_writable_bytes(std::span(send))).value();
  receive_key = of.Register(std::as_writable_bytes(std::span(receive))).value();
}

WorkRequest RankArrays::Request(uint64_t wr_id, uint32_t mid) const {
  WorkRequest request;
  request.wr_id = wr_id;
  request.type = DataType::kInt32;
  request.mid = mid;
  request.length = send.size() * sizeof(int32_t);
  request.send.key = send_key;
  request.receive.key = receive_key;
  return request;
}

}  // namespace longhaul::offload
