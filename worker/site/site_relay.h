// The end of a site's ranks that speaks to the parameter server: one member of the job. It has a client on
// the WAN and a device on the site's daemon, as one more rank, the last.
//
//   step   when every rank that is here has asked: go -> the engine adds up weight x gradient and the weights
//          -> the sum by its weight, pushed with that weight -> the result, received into memory that all
//          ranks share -> deliver
//
// A rank that dies is in no later sum: sums name the ranks that they are of, and one that has lost a rank is
// made anew without it. So every element of a contribution has the same ranks in it, and its weight is
// theirs. What the loss policy remembers (residual, shift) is the client's here, once per site.
//
// Not cut through: a tensor is summed before it is pushed, and received before it is delivered, since
// Client::PushPull takes and gives whole tensors. Several tensors are on their way at once.
//
// When not: as a server's stand-in. It keeps no values but the last result of each tensor.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "longhaul/client.h"

namespace longhaul::site {

struct RelayOptions {
  std::string where;  // of the site's daemon, which has one rank more than the site
  ConnectOptions connect;
  // Once, on the relay's thread: the last rank has left (Ok), or why the relay has failed. Ranks have been
  // told.
  std::function<void(const Status&)> on_end = {};
};

class SiteRelay {
 public:
  // Returns at once; what fails is said by on_end.
  static Result<std::unique_ptr<SiteRelay>> Start(const RelayOptions& options);
  // Ends what is pending. Waits for a Connect that is under way (ConnectOptions::connect_timeout).
  ~SiteRelay();

  // What the daemon knows of its ranks (DaemonOptions::on_rank). Any thread.
  void OnRank(uint8_t rank, bool here);
  // Ends what is pending and leaves the job, as the destructor does; on_end is not called any more.
  void Stop();
  // What happens to the site on the WAN; zeros before it is connected. Any thread.
  ClientStats stats() const;

 private:
  class Impl;
  explicit SiteRelay(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::site
