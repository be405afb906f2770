// How the engine of a node reaches those of other machines.
#pragma once

#include <string>

#include "offload/engine/engine.h"

namespace longhaul::offload {

// One thread, that of the engine. No call waits.
class NodeLink {
 public:
  virtual ~NodeLink() = default;

  // Whose engine it is for.
  virtual uint8_t node() const = 0;
  // Readable: there is something to receive.
  virtual int fd() const = 0;
  // Fetches a bounded share of what has arrived. True: there is something to deliver.
  virtual bool Fetch() = 0;
  // Hands the engine what was fetched. Requests that were posted before it was sent have been posted by now,
  // if they are taken between the two.
  virtual void Deliver(Instant now, Engine& engine) = 0;
  // Sends a bounded share of what the engine has to say. True: there is more, and room for it.
  virtual bool Transmit(Instant now, Engine& engine) = 0;
  // Something waits for room to send: Transmit again within a ms or so.
  virtual bool IsBlocked() const = 0;
  // What keeps nodes apart, a sentence for the log; empty: nothing new.
  virtual std::string TakeWarning() { return {}; }
};

}  // namespace longhaul::offload
