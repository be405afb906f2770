// A peer of a port for probes, with a socket of its own: well-behaved or not.
#pragma once

#include <string>
#include <string_view>

#include "base/address.h"
#include "base/files.h"
#include "longhaul/units.h"

namespace longhaul::health {

class TcpPeer {
 public:
  // Connects; ok() says whether that worked.
  explicit TcpPeer(const Address& to, int receive_buffer = 0);
  bool ok() const { return ok_; }
  // False: the other side takes nothing any more.
  bool Send(std::string_view bytes) const;
  // What comes until the other side closes, or until `limit`.
  std::string Receive(Duration limit = std::chrono::seconds(20)) const;
  // Whether the other side has closed, by then.
  bool IsClosedBy(Duration limit) const;

 private:
  FileDescriptor socket_;
  bool ok_ = false;
};

struct HttpReply {
  int code = 0;      // 0: none came
  std::string body;  // as long as its head says, else empty
  std::string head;
};

HttpReply ParseReply(const std::string& text);
// GET, on a connection of its own.
HttpReply Get(const Address& to, const std::string& path, const std::string& method = "GET");

}  // namespace longhaul::health
