// The end of a site's ranks that speaks to the parameter server: one member of the job. It has a client on
// the WAN and a device on the site's daemon, as one more rank, the last.
//
//   step   when every rank that is here has asked: go -> the engines add up weight x gradient and the weights
//          -> the sum by its weight, pushed with that weight -> the result, received into memory that all
//          ranks share, and sent to the other nodes -> deliver
//
// A rank that dies is in no later sum: sums name the ranks that they are of, and one that has lost a rank is
// made anew without it. So every element of a contribution has the same ranks in it, and its weight is
// theirs. What the loss policy remembers (residual, shift) is the client's here, once per site.
//
// A site of several nodes has a relay on each. One leads (Leadership); the others know what they need to take
// its place. What its death costs: docs/internals/offload.md.
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

struct Takeover {
  uint8_t node = 0;     // leads now
  uint8_t from = 0;     // led before
  Duration silence{0};  // of that one; 0: it has handed over, or was started again
};

struct RelayOptions {
  std::string where;  // of the daemon of its node, which has one rank more than the site has there
  // The same at all nodes. A successor says a higher incarnation.
  ConnectOptions connect;
  // The daemon has one node of the site's, and other nodes have relays too; else it has all of them, and this
  // relay is their only one.
  bool one_node = false;
  // Once, on the relay's thread: the last rank has left (Ok), or why the relay has failed. Ranks have been
  // told.
  std::function<void(const Status&)> on_end = {};
  // On the relay's thread: this one leads from now on, in the place of another one.
  std::function<void(const Takeover&)> on_takeover = {};
};

class SiteRelay {
 public:
  // Returns at once; what fails is said by on_end.
  static Result<std::unique_ptr<SiteRelay>> Start(const RelayOptions& options);
  // Ends what is pending. Waits for a Connect that is under way (ConnectOptions::connect_timeout).
  ~SiteRelay();

  // What the daemon knows of its ranks (DaemonOptions::on_rank). Any thread.
  void OnRank(uint8_t node, uint8_t rank, bool here);
  // Ends what is pending and leaves the job, as the destructor does; on_end is not called any more. A relay
  // of another node goes on, if there is one: this one waits until it does, 2 s at most.
  void Stop();
  // What happens to the site on the WAN, of the last time that this relay led; zeros before it is connected.
  // Any thread.
  ClientStats stats() const;
  // For probes; any thread. The site's client on the WAN: null until it has joined, and where another node's
  // relay leads.
  std::shared_ptr<Client> client() const;
  // Another node's relay leads.
  bool follows() const;
  // Since the relay's thread has looked around, which it does ten times a second.
  Duration silence() const;

 private:
  class Impl;
  explicit SiteRelay(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul::site
