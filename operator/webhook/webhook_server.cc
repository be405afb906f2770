#include "operator/webhook/webhook_server.h"

#include <algorithm>
#include <asio.hpp>
#include <asio/ssl.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "health/health_port.h"
#include "health/http_request.h"
#include "operator/webhook/api_desk.h"
#include "operator/webhook/certificate.h"
#include "transport/udp/clock.h"
#include "transport/udp/resolve.h"

namespace longhaul::kube::webhook {
namespace {

using asio::ip::tcp;
using health::CannotListen;
using health::HttpRequest;
using health::ReasonOf;

constexpr int kBacklog = 256;  // a burst; a connection that finds no place here is tried again a second later
// Without a descriptor for a newcomer.
constexpr Duration kPause = std::chrono::milliseconds(50);
// Of what a peer sends behind its request: read, so that the answer is not lost to a reset.
constexpr size_t kMostIgnored = size_t{4} << 20;

std::string HeadOf(int code, size_t body_bytes) {
  return "HTTP/1.1 " + std::to_string(code) + " " + ReasonOf(code) +
         "\r\nContent-Type: " + (code == 200 ? "application/json" : "text/plain; charset=utf-8") +
         "\r\nContent-Length: " + std::to_string(body_bytes) +
         "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n" +
         (code == 405 ? "Allow: POST\r\n" : "") + "\r\n";
}

}  // namespace

struct WebhookServer::Impl {
  struct Connection {
    Connection(tcp::socket socket, Certificate::Context the_context)
        : context(std::move(the_context)),
          stream(std::move(socket), *context),
          deadline(stream.get_executor()) {}
    Certificate::Context context;  // outlives the stream, whatever is read meanwhile
    asio::ssl::stream<tcp::socket> stream;
    asio::steady_timer deadline;
    const Instant since = udp::Now();
    HttpRequest request{HttpRequest::Takes::kPosts};
    std::array<char, 8192> buffer;
    Hook hook = Hook::kValidate;
    std::string body;
    size_t missing = 0;  // of the body
    ReviewId review = 0;
    std::string head, answer;
    size_t ignored = 0;
    bool closed = false;
  };
  using Ref = std::shared_ptr<Connection>;

  explicit Impl(const WebhookOptions& the_options)
      : options(the_options),
        certificate(the_options.certificates_folder),
        admission(the_options.admission) {}
  ~Impl();
  Status Listen();
  Status Start(std::unique_ptr<api::RestClient> client);

  // --- The thread that serves ---
  void Serve();
  void Accept();
  void PauseAccepting(Duration time);
  Ref OldestSender() const;
  void Admit(tcp::socket socket);
  void ReadHead(const Ref& connection);
  void OnHead(const Ref& connection, std::string_view rest);
  void ReadBody(const Ref& connection);
  bool TakeBody(const Ref& connection, std::string_view bytes);
  void OnBody(const Ref& connection);
  // What admission wants: questions to the desk, answers to their connections, its timer.
  void Pump();
  void OnReply(const Question& question, const Result<bool>& answer);
  void Answer(const Ref& connection, int code, std::string body);
  void End(const Ref& connection);
  void Ignore(const Ref& connection);
  void Break(const Ref& connection);
  void Close(const Ref& connection);
  void Release(Connection* connection);
  void LookForCertificate();
  void Publish();

  const WebhookOptions options;
  Address address;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  asio::steady_timer limit{io};  // of reviews
  asio::steady_timer look{io};
  Certificate certificate;
  Status certificate_problem;
  Admission admission;
  std::list<Ref> connections;  // the oldest first
  std::map<ReviewId, Ref> reviews;
  ReviewId next_review = 1;
  size_t bytes = 0;  // of all bodies
  WebhookCounters counters;
  bool accepting = false;

  std::unique_ptr<ApiDesk> desk;
  std::thread server;
  mutable std::mutex mutex;
  WebhookState published;  // guarded by mutex
};

Status WebhookServer::Impl::Listen() {
  const Result<Address> resolved = udp::ResolveListen(options.listen);
  if (!resolved.ok()) return resolved.status();
  const tcp protocol = resolved->IsV4() ? tcp::v4() : tcp::v6();
  const udp::SocketAddress to = udp::ToSocketAddress(*resolved, protocol.family());
  tcp::endpoint endpoint(protocol, 0);
  std::memcpy(endpoint.data(), to.get(), std::min<size_t>(to.size, endpoint.capacity()));
  std::error_code error;
  acceptor.open(protocol, error);
  // Another program on the port is an error all the same; connections of an earlier one that linger are not.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) return CannotListen(options.listen, error);
  const tcp::endpoint bound = acceptor.local_endpoint(error);
  if (error) return CannotListen(options.listen, error);
  address = *resolved;
  address.port = bound.port();
  return {};
}

Status WebhookServer::Impl::Start(std::unique_ptr<api::RestClient> client) {
  auto started = ApiDesk::Start(std::move(client), options.question_limit,
                                [this](const Question& question, const Result<bool>& answer) {
                                  asio::post(io, [this, question, answer] { OnReply(question, answer); });
                                });
  if (!started.ok()) return started.status();
  desk = std::move(*started);
  Publish();
  try {
    server = std::thread([this] { Serve(); });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for the webhooks: ") + error.what()};
  }
  return {};
}

WebhookServer::Impl::~Impl() {
  desk.reset();
  io.stop();
  if (server.joinable()) server.join();
}

Result<std::unique_ptr<WebhookServer>> WebhookServer::Open(const WebhookOptions& options,
                                                           const api::ClusterAccess& access,
                                                           const api::RestOptions& rest, Random chance) {
  try {
    auto client = api::RestClient::Make(access, rest, chance);
    if (!client.ok()) return client.status();
    auto impl = std::make_unique<Impl>(options);
    if (const auto listen = udp::ResolveListen(options.listen); !listen.ok()) return listen.status();
    if (Status read = impl->certificate.Refresh(); !read.ok()) return read;
    if (Status listening = impl->Listen(); !listening.ok()) return listening;
    if (Status started = impl->Start(std::move(*client)); !started.ok()) return started;
    return std::unique_ptr<WebhookServer>(new WebhookServer(std::move(impl)));
  } catch (const std::system_error& error) {  // Asio throws when epoll is not available
    return Status(StatusCode::kInternal, std::string("no port for webhooks: ") + error.what());
  }
}

WebhookServer::WebhookServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WebhookServer::~WebhookServer() = default;
const Address& WebhookServer::address() const { return impl_->address; }

void WebhookServer::SetKey(std::string key) {
  asio::post(impl_->io, [impl = impl_.get(), key = std::move(key)] { impl->admission.SetKey(key); });
}

WebhookState WebhookServer::state() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->published;
}

void WebhookServer::Impl::Publish() {
  counters.open = connections.size();
  counters.body_bytes = ByteCount(static_cast<int64_t>(bytes));
  counters.certificates = certificate.loads();
  counters.permission_hits = admission.permission_counters().hits;
  counters.permission_misses = admission.permission_counters().misses;
  const std::lock_guard lock(mutex);
  published = {counters, admission.counters(), certificate_problem};
}

void WebhookServer::Impl::Serve() {
  LookForCertificate();
  for (;;) {
    try {
      Accept();
      io.run();
      return;
    } catch (const std::exception&) {  // out of memory: what was being done is given up
      ++counters.broken;
    }
  }
}

void WebhookServer::Impl::LookForCertificate() {
  look.expires_after(options.look_for_certificate);
  look.async_wait([this](const std::error_code& error) {
    if (error) return;
    LookForCertificate();
    certificate_problem = certificate.Refresh();
    if (!certificate_problem.ok()) ++counters.certificate_failures;
    Publish();
  });
}

// --- Connections ---

void WebhookServer::Impl::Accept() {
  if (accepting) return;
  if (connections.size() >= options.connections) {
    const Duration young = OldestSender()->since + options.patience - udp::Now();
    if (young > Duration(0)) return PauseAccepting(young);
  }
  acceptor.async_accept([this](const std::error_code& error, tcp::socket socket) {
    accepting = false;
    if (error) return PauseAccepting(kPause);
    Admit(std::move(socket));
    Accept();
  });
  accepting = true;
}

void WebhookServer::Impl::PauseAccepting(Duration time) {
  pause.expires_after(time);
  pause.async_wait([this](const std::error_code&) {
    accepting = false;
    Accept();
  });
  accepting = true;
}

// REQUIRES: there are connections. Not one whose review waits for the API server, where there is another.
WebhookServer::Impl::Ref WebhookServer::Impl::OldestSender() const {
  const auto found = std::ranges::find_if(connections, [](const Ref& one) { return one->review == 0; });
  return found == connections.end() ? connections.front() : *found;
}

void WebhookServer::Impl::Admit(tcp::socket socket) {
  ++counters.connections;
  if (connections.size() >= options.connections) {
    ++counters.displaced;
    Close(OldestSender());
  }
  const Ref connection = std::make_shared<Connection>(std::move(socket), certificate.context());
  connections.push_back(connection);
  connection->deadline.expires_after(options.deadline);
  connection->deadline.async_wait([this, connection](const std::error_code& error) {
    if (error || connection->closed) return;
    ++counters.late;
    Close(connection);
  });
  connection->stream.async_handshake(asio::ssl::stream_base::server,
                                     [this, connection](const std::error_code& error) {
                                       if (connection->closed) return;
                                       if (error) return Break(connection);
                                       ReadHead(connection);
                                     });
  Publish();
}

void WebhookServer::Impl::ReadHead(const Ref& connection) {
  connection->stream.async_read_some(
      asio::buffer(connection->buffer), [this, connection](const std::error_code& error, size_t size) {
        if (connection->closed) return;
        if (error) return Break(connection);
        const std::string_view got(connection->buffer.data(), size);
        switch (connection->request.Take(got)) {
          case HttpRequest::State::kMore:
            return ReadHead(connection);
          case HttpRequest::State::kWhole:
            return OnHead(connection, got.substr(std::min(size, connection->request.taken())));
          case HttpRequest::State::kRefused:
            return Answer(connection, connection->request.refusal(),
                          std::string(ReasonOf(connection->request.refusal())) + "\n");
        }
      });
}

void WebhookServer::Impl::OnHead(const Ref& connection, std::string_view rest) {
  const HttpRequest& request = connection->request;
  const std::optional<Hook> hook = HookOf(request.path(), certificate.path());
  if (!hook) {
    return Answer(
        connection, 404,
        "there are /mutate and /validate, with what the entry path of the certificate's Secret has: "
        "deploy/kubernetes/admission-webhook/certificate.sh writes both\n");
  }
  if (request.content_length() > options.max_body_bytes) {
    return Answer(connection, 413,
                  "a review has at most " + std::to_string(options.max_body_bytes) + " bytes\n");
  }
  connection->hook = *hook;
  connection->missing = static_cast<size_t>(request.content_length());
  if (!TakeBody(connection, rest)) return;
  if (connection->missing == 0) return OnBody(connection);
  if (!request.expects_continue()) return ReadBody(connection);
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(connection->stream, asio::buffer(kContinue),
                    [this, connection](const std::error_code& error, size_t) {
                      if (connection->closed) return;
                      if (error) return Break(connection);
                      ReadBody(connection);
                    });
}

void WebhookServer::Impl::ReadBody(const Ref& connection) {
  connection->stream.async_read_some(asio::buffer(connection->buffer),
                                     [this, connection](const std::error_code& error, size_t size) {
                                       if (connection->closed) return;
                                       if (error) return Break(connection);
                                       if (!TakeBody(connection, {connection->buffer.data(), size})) return;
                                       if (connection->missing > 0) return ReadBody(connection);
                                       OnBody(connection);
                                     });
}

// False: it was answered.
bool WebhookServer::Impl::TakeBody(const Ref& connection, std::string_view got) {
  got = got.substr(0, connection->missing);
  if (bytes + got.size() > options.max_bytes) {
    Answer(connection, 503, "too many reviews at once: try again\n");
    return false;
  }
  bytes += got.size();
  connection->missing -= got.size();
  connection->body += got;
  Publish();
  return true;
}

void WebhookServer::Impl::OnBody(const Ref& connection) {
  connection->review = next_review++;
  reviews[connection->review] = connection;
  admission.OnReview(connection->review, connection->hook, connection->body, udp::Now());
  Release(connection.get());
  Pump();
}

void WebhookServer::Impl::Release(Connection* connection) {
  bytes -= connection->body.size();
  std::string().swap(connection->body);
}

void WebhookServer::Impl::OnReply(const Question& question, const Result<bool>& answer) {
  if (question.kind == Question::Kind::kName) {
    admission.OnName(question.id, answer, udp::Now());
  } else {
    admission.OnPermission(question.id, answer, udp::Now());
  }
  Pump();
}

void WebhookServer::Impl::Pump() {
  while (std::optional<Question> question = admission.NextQuestion()) desk->Ask(std::move(*question));
  while (std::optional<webhook::Answer> answer = admission.NextAnswer()) {
    const auto found = reviews.find(answer->id);
    if (found == reviews.end()) continue;
    const Ref connection = found->second;
    reviews.erase(found);
    connection->review = 0;
    Answer(connection, answer->http, std::move(answer->body));
  }
  const Instant next = admission.NextTimeout();
  if (next.IsInfinite()) {
    limit.cancel();
  } else {
    limit.expires_after(std::max<Duration>(next - udp::Now(), Duration(0)));
    limit.async_wait([this](const std::error_code& error) {
      if (error) return;
      admission.OnTime(udp::Now());
      Pump();
    });
  }
  Publish();
}

void WebhookServer::Impl::Answer(const Ref& connection, int code, std::string body) {
  if (code != 200) ++counters.refused;
  Release(connection.get());
  connection->head = HeadOf(code, body.size());
  connection->answer = std::move(body);
  const std::array<asio::const_buffer, 2> parts = {asio::buffer(connection->head),
                                                   asio::buffer(connection->answer)};
  asio::async_write(connection->stream, parts, [this, connection](const std::error_code& error, size_t) {
    if (connection->closed) return;
    if (error) return Break(connection);
    End(connection);
  });
}

// Says the end of TLS and waits for the peer's. A peer that still sends what was not asked for gets the end
// of the connection, and what it sends is read: closing with bytes unread resets the connection, and the
// answer may be lost with it.
void WebhookServer::Impl::End(const Ref& connection) {
  connection->stream.async_shutdown([this, connection](const std::error_code& error) {
    if (connection->closed) return;
    if (!error) return Close(connection);
    std::error_code failed;
    connection->stream.next_layer().shutdown(tcp::socket::shutdown_send, failed);
    Ignore(connection);
  });
}

void WebhookServer::Impl::Ignore(const Ref& connection) {
  connection->stream.next_layer().async_read_some(
      asio::buffer(connection->buffer), [this, connection](const std::error_code& error, size_t size) {
        if (connection->closed) return;
        connection->ignored += size;
        if (error || connection->ignored > kMostIgnored) return Close(connection);
        Ignore(connection);
      });
}

void WebhookServer::Impl::Break(const Ref& connection) {
  ++counters.broken;
  Close(connection);
}

void WebhookServer::Impl::Close(const Ref& connection) {
  connection->closed = true;
  connection->deadline.cancel();
  std::error_code ignored;
  connection->stream.lowest_layer().close(ignored);
  Release(connection.get());
  if (connection->review != 0) {
    admission.Forget(connection->review);
    reviews.erase(connection->review);
  }
  connections.remove(connection);
  pause.cancel();  // there is a place
  Publish();
}

}  // namespace longhaul::kube::webhook
