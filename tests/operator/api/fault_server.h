// An HTTP/1.1 server on a loopback port that does what a test says, faults included: an answer that is cut,
// slow, endless or garbage, a connection that is closed or reset. Plain or by TLS.
//
// Blocking sockets and a thread a connection, without Asio or Beast: the faults are the socket's (a reset by
// SO_LINGER, a cut inside a TLS record), the server has a handful of connections, and its compilation takes a
// second.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/files.h"
#include "longhaul/units.h"

struct ssl_ctx_st;

namespace longhaul::kube::api {

struct FaultRequest {
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  int connection = 0;  // the how-manieth of the server
};

class FaultServer {
 public:
  // The connection of a request; writes go to its socket at once.
  class Peer {
   public:
    virtual ~Peer() = default;
    // False: the client has closed.
    virtual bool Send(std::string_view bytes) = 0;
    // Waits, but not beyond the server's end; false then, or when the client has closed.
    virtual bool Pause(Duration time) = 0;
    // Ends the connection with RST instead of FIN.
    virtual void Reset() = 0;
    // A whole answer with a length; the connection stays.
    void Answer(int status, std::string_view body, const std::string& headers = "");
    // The head of an answer in chunks, and a chunk.
    void BeginChunks(int status = 200);
    bool Chunk(std::string_view bytes);
    void EndChunks() { Send("0\r\n\r\n"); }
  };
  // Called on the connection's thread. True: the connection takes a further request; false: it is closed.
  using Handler = std::function<bool(const FaultRequest&, Peer&)>;

  // tls: a certificate and key in PEM; empty: plain. client_ca: clients need a certificate of it.
  explicit FaultServer(Handler handler, const std::string& tls = "", const std::string& client_ca = "");
  ~FaultServer();
  FaultServer(const FaultServer&) = delete;
  FaultServer& operator=(const FaultServer&) = delete;

  // "http://127.0.0.1:PORT" or https.
  std::string url() const;
  std::vector<FaultRequest> requests() const;
  int connections() const { return connections_.load(); }
  // Clients whose connection is taken and whose first request is not read.
  void RefuseConnections(bool refuse) { refuse_.store(refuse); }
  // Ends those that are open, as a server that is started anew does.
  void DropConnections();
  // For servers that take very many: requests() stays empty.
  void ForgetRequests() { forget_.store(true); }
  bool ending() const { return ending_.load(); }

 private:
  class Connection;

  void Accept();
  void Serve(std::shared_ptr<Connection> connection);

  Handler handler_;
  std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> tls_;
  FileDescriptor listener_;
  int port_ = 0;
  std::atomic<int> connections_{0};
  std::atomic<bool> refuse_{false};
  std::atomic<bool> ending_{false};
  std::atomic<bool> forget_{false};
  mutable std::mutex mutex_;
  std::vector<FaultRequest> requests_;
  std::list<std::shared_ptr<Connection>> open_;
  struct Thread {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> ended;
  };
  std::list<Thread> threads_;
  std::thread acceptor_;
};

}  // namespace longhaul::kube::api
