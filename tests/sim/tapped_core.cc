#include "tests/sim/processes.h"

#include <algorithm>

namespace longhaul::sim {

void TappedCore::HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                                const transport::ReceiveInfo& info) {
  Heard& heard = heard_[from];
  heard.times[heard.next++ % heard.times.size()] = now;
  if (datagrams_++ % 7 == 0) {
    Sample sample{from, {datagram.begin(), datagram.end()}};
    if (samples_.size() < kMaxSamples) {
      samples_.push_back(std::move(sample));
    } else {
      samples_[datagrams_ / 7 % kMaxSamples] = std::move(sample);
    }
  }
  core_->HandleDatagram(now, from, datagram, info);
}

uint32_t TappedCore::HeardSince(const Address& from, Instant since) const {
  const auto found = heard_.find(from);
  if (found == heard_.end()) return 0;
  const Heard& heard = found->second;
  const auto known = std::min<size_t>(heard.next, heard.times.size());
  return static_cast<uint32_t>(std::count_if(heard.times.begin(),
                                             heard.times.begin() + static_cast<ptrdiff_t>(known),
                                             [since](Instant t) { return t > since; }));
}

Instant TappedCore::LastHeard(const Address& from) const {
  const auto found = heard_.find(from);
  return found == heard_.end() ? Instant() : *std::ranges::max_element(found->second.times);
}

}  // namespace longhaul::sim
