#include "tests/operator/api/fault_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "tests/operator/api/test_ca.h"

namespace longhaul::kube::api {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

class FaultServer::Connection : public Peer {
 public:
  Connection(FaultServer* server, int socket, int number)
      : server_(server), socket_(socket), number_(number) {}
  ~Connection() override { SSL_free(tls_); }

  bool Begin() {
    if (!server_->tls_) return true;
    tls_ = SSL_new(server_->tls_.get());
    SSL_set_fd(tls_, socket_.get());
    return SSL_accept(tls_) == 1;
  }
  bool Send(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t sent = tls_ != nullptr ? SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()))
                                           : ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // The client sends nothing while it waits for an answer: what can be read is its end.
  bool Pause(Duration time) override {
    for (const auto end = Clock::now() + time;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      if (server_->ending()) return false;
      if (left <= 0) return true;
      pollfd ready{socket_.get(), POLLIN | POLLRDHUP, 0};
      if (::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 50))) > 0) return false;
    }
  }
  void Reset() override {
    const linger now{1, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    reset_ = true;
  }
  bool Read(FaultRequest* request);
  // Any thread: what waits on the socket returns.
  void Shutdown() { ::shutdown(socket_.get(), SHUT_RDWR); }
  void Close() {
    if (tls_ != nullptr && !reset_) SSL_shutdown(tls_);
    if (!reset_) ::shutdown(socket_.get(), SHUT_RDWR);
  }

 private:
  bool Fill() {
    char buffer[16384];
    const ssize_t bytes = tls_ != nullptr ? SSL_read(tls_, buffer, sizeof buffer)
                                          : ::recv(socket_.get(), buffer, sizeof buffer, 0);
    if (bytes > 0) pending_.append(buffer, static_cast<size_t>(bytes));
    return bytes > 0;
  }

  FaultServer* server_;
  FileDescriptor socket_;
  const int number_;
  SSL* tls_ = nullptr;
  bool reset_ = false;
  std::string pending_;
};

bool FaultServer::Connection::Read(FaultRequest* request) {
  size_t end = 0;
  while ((end = pending_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill()) return false;
  }
  const std::string head = pending_.substr(0, end + 2);
  pending_.erase(0, end + 4);
  const size_t first = head.find(' ');
  const size_t second = head.find(' ', first + 1);
  request->method = head.substr(0, first);
  request->target = head.substr(first + 1, second - first - 1);
  request->connection = number_;
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t line_end = head.find("\r\n", at);
    const std::string line = head.substr(at, line_end - at);
    at = line_end + 2;
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
    request->headers[name] = line.substr(colon + 2);
  }
  const auto length = request->headers.find("content-length");
  const size_t bytes = length == request->headers.end() ? 0 : std::stoul(length->second);
  while (pending_.size() < bytes) {
    if (!Fill()) return false;
  }
  request->body = pending_.substr(0, bytes);
  pending_.erase(0, bytes);
  return true;
}

void FaultServer::Peer::Answer(int status, std::string_view body, const std::string& headers) {
  Send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\nContent-Length: " +
       std::to_string(body.size()) + "\r\n" + headers + "\r\n" + std::string(body));
}

void FaultServer::Peer::BeginChunks(int status) {
  Send("HTTP/1.1 " + std::to_string(status) +
       " X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
}

bool FaultServer::Peer::Chunk(std::string_view bytes) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return Send(size + std::string(bytes) + "\r\n");
}

FaultServer::FaultServer(Handler handler, const std::string& tls, const std::string& client_ca)
    : handler_(std::move(handler)),
      tls_(tls.empty() ? nullptr : MakeTlsContext(tls, client_ca), SSL_CTX_free) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to what the client has closed
  listener_.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener_.get(), generic, size), 0);
  EXPECT_EQ(::listen(listener_.get(), 64), 0);
  EXPECT_EQ(::getsockname(listener_.get(), generic, &size), 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

FaultServer::~FaultServer() {
  ending_.store(true);
  ::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& connection : open_) connection->Shutdown();
  }
  for (Thread& one : threads_) one.thread.join();
}

std::string FaultServer::url() const {
  return (tls_ ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(port_);
}

std::vector<FaultRequest> FaultServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void FaultServer::DropConnections() {
  const std::lock_guard lock(mutex_);
  for (const auto& connection : open_) connection->Shutdown();
}

void FaultServer::Accept() {
  for (;;) {
    const int socket = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    auto connection = std::make_shared<Connection>(this, socket, connections_.fetch_add(1));
    const std::lock_guard lock(mutex_);
    if (refuse_.load() || ending()) continue;  // closes it
    open_.push_back(connection);
    // Those that are at their end; a server of thousands of connections would run out of memory for stacks.
    std::erase_if(threads_, [](Thread& one) {
      if (!one.ended->load()) return false;
      one.thread.join();
      return true;
    });
    auto ended = std::make_shared<std::atomic<bool>>(false);
    threads_.push_back({std::thread([this, connection, ended] {
                          Serve(connection);
                          ended->store(true);
                        }),
                        ended});
  }
}

void FaultServer::Serve(std::shared_ptr<Connection> connection) {
  FaultRequest request;
  if (connection->Begin()) {
    while (connection->Read(&request)) {
      if (!forget_.load()) {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      if (!handler_(request, *connection) || ending()) break;
      request = {};
    }
  }
  const std::lock_guard lock(mutex_);
  connection->Close();
  open_.remove(connection);
}

}  // namespace longhaul::kube::api
