#include "health/health_port.h"

#include <asio.hpp>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/token_bucket.h"
#include "health/http_request.h"
#include "transport/udp/clock.h"
#include "transport/udp/resolve.h"

namespace longhaul::health {
namespace {

using asio::ip::tcp;
using Page = std::shared_ptr<const std::string>;

constexpr const char* kVersion = "0.1.0";
// Newcomers that wait for the port's thread; as many as connections are taken at once.
constexpr int kBacklog = 32;
// Without a descriptor, or beyond the rate of newcomers.
constexpr Duration kPause = std::chrono::milliseconds(50);
// What a peer has sent beyond its request is read before the end: closing with bytes unread resets the
// connection, and the answer may be lost with it.
constexpr size_t kMostIgnored = 65536;

double WallClock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string HeadOf(int code, size_t body_bytes) {
  return "HTTP/1.1 " + std::to_string(code) + " " + ReasonOf(code) +
         "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
         std::to_string(body_bytes) +
         "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n" +
         (code == 405 ? "Allow: GET, HEAD\r\n" : "") + "\r\n";
}

tcp::endpoint EndpointOf(const Address& address) {
  if (!address.IsV4()) return {asio::ip::address_v6(address.ip), address.port};
  asio::ip::address_v4::bytes_type bytes{address.ip[12], address.ip[13], address.ip[14], address.ip[15]};
  return {asio::ip::address_v4(bytes), address.port};
}

Address AddressOf(const tcp::endpoint& endpoint) {
  Address address;
  address.port = endpoint.port();
  if (endpoint.address().is_v6()) {
    const auto bytes = endpoint.address().to_v6().to_bytes();
    std::copy(bytes.begin(), bytes.end(), address.ip.begin());
    return address;
  }
  const auto b = endpoint.address().to_v4().to_bytes();
  return Address::V4(b[0], b[1], b[2], b[3], endpoint.port());
}

}  // namespace

Status CannotListen(const std::string& where, const std::error_code& error) {
  StatusCode code = StatusCode::kInternal;
  if (error.value() == EADDRINUSE) code = StatusCode::kAlreadyExists;
  if (error.value() == EACCES) code = StatusCode::kPermissionDenied;
  if (error.value() == EADDRNOTAVAIL) code = StatusCode::kUnavailable;
  return {code, "cannot listen on TCP " + where + ": " + error.message()};
}

struct HealthPort::Impl {
  struct Connection {
    explicit Connection(tcp::socket the_socket)
        : socket(std::move(the_socket)), deadline(socket.get_executor()) {}
    tcp::socket socket;
    asio::steady_timer deadline;
    HttpRequest request;
    std::array<char, 2048> buffer;
    std::string head;  // of the answer
    Page body;
    size_t ignored = 0;
    bool closed = false;
  };
  using Ref = std::shared_ptr<Connection>;

  Impl(const HealthBounds& the_bounds, std::string the_program)
      : bounds(the_bounds),
        program(std::move(the_program)),
        newcomers(the_bounds.connections_per_second, the_bounds.connections_per_second) {}
  ~Impl();
  Status Listen(const std::string& where);
  Status Start();

  // --- The thread that serves ---
  void Serve();
  void Accept();
  void PauseAccepting();
  void Admit(tcp::socket socket);
  void Read(const Ref& connection);
  void OnRequest(const Ref& connection);
  void AnswerMetrics(const Ref& connection);
  void OnPage(const Page& made, Duration took);
  void Answer(const Ref& connection, int code, const Page& body);
  void Answer(const Ref& connection, int code, const std::string& text) {
    Answer(connection, code, std::make_shared<const std::string>(text));
  }
  void Linger(const Ref& connection);
  void Close(const Ref& connection);

  // --- The thread that asks ---
  void Ask();
  void NoteState(const LoopState& state);
  Page MakePage(const HealthSource* source, const LoopState& state);

  // --- Either ---
  std::string NotHealthy();  // empty: healthy
  std::string NotReady();    // under the lock

  const HealthBounds bounds;
  const std::string program;
  const double started = WallClock();
  std::atomic<double> progress{started};
  Address address;

  // The serving thread's.
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer pause{io};
  TokenBucket newcomers;
  std::list<Ref> connections;  // the oldest first
  std::list<Ref> scrapes;      // that wait for a page
  Page page;                   // the last one, for those who ask soon after it
  Instant page_good_until;
  HealthCounters counters;
  bool accepting = false;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::shared_ptr<const HealthSource> source;
  bool asking = false;
  std::optional<HealthCounters> wanted;        // a page, with these counters in it
  Instant asked_since = Instant::Infinite();   // a question that is on its way
  Instant silent_since = Instant::Infinite();  // the first question without an answer
  std::string not_ready = "starting";
  std::string stopping;
  bool stop = false;

  std::thread server;
  std::thread asker;
};

// --- Life ---

Status HealthPort::Impl::Listen(const std::string& where) {
  const Result<Address> resolved = udp::ResolveListen(where);
  if (!resolved.ok()) return resolved.status();
  const tcp::endpoint endpoint = EndpointOf(*resolved);
  std::error_code error;
  acceptor.open(endpoint.protocol(), error);
  // Another daemon on the port is an error all the same; connections of an earlier one that linger are not.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) return CannotListen(where, error);
  address = AddressOf(acceptor.local_endpoint(error));
  return error ? CannotListen(where, error) : Status();
}

Status HealthPort::Impl::Start() {
  try {
    server = std::thread([this] { Serve(); });
    asker = std::thread([this] { Ask(); });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for the port of probes: ") + error.what()};
  }
  return {};
}

HealthPort::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stop = true;
    changed.notify_all();
  }
  if (asker.joinable()) asker.join();
  io.stop();
  if (server.joinable()) server.join();
}

Result<std::unique_ptr<HealthPort>> HealthPort::Open(const std::string& where, const std::string& program,
                                                     const HealthBounds& bounds) {
  try {
    auto impl = std::make_unique<Impl>(bounds, program);
    if (Status listening = impl->Listen(where); !listening.ok()) return listening;
    if (Status started = impl->Start(); !started.ok()) return started;
    return std::unique_ptr<HealthPort>(new HealthPort(std::move(impl)));
  } catch (const std::system_error& error) {  // Asio throws when epoll is not available
    return Status(StatusCode::kInternal, std::string("no port for probes: ") + error.what());
  }
}

HealthPort::HealthPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HealthPort::~HealthPort() = default;
const Address& HealthPort::address() const { return impl_->address; }

void HealthPort::Watch(HealthSource source) {
  const std::lock_guard lock(impl_->mutex);
  impl_->source = std::make_shared<const HealthSource>(std::move(source));
  impl_->changed.notify_all();
}

void HealthPort::Forget() {
  std::unique_lock lock(impl_->mutex);
  impl_->source.reset();
  impl_->changed.wait(lock, [this] { return !impl_->asking; });
  impl_->silent_since = Instant::Infinite();
  impl_->not_ready = "ending";
}

void HealthPort::SetStopping(const std::string& why) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping.empty()) impl_->stopping = why;
}

void HealthPort::NoteProgress() { impl_->progress.store(WallClock(), std::memory_order_relaxed); }

// --- Asking ---

void HealthPort::Impl::Ask() {
  std::unique_lock lock(mutex);
  std::shared_ptr<const HealthSource> asked;
  while (!stop) {
    // A new source is asked at once.
    changed.wait_for(lock, bounds.look_every, [&] { return stop || wanted || source != asked; });
    if (stop) return;
    asked = source;
    const bool has_page = wanted.has_value();
    if (!asked && !has_page) continue;
    asking = true;
    asked_since = udp::Now();
    lock.unlock();
    LoopState state{.answers = true, .not_ready = {}};
    if (asked) state = asked->look();
    lock.lock();
    if (asked) NoteState(state);
    asked_since = Instant::Infinite();
    lock.unlock();
    const Instant making = udp::Now();
    const Page made = has_page ? MakePage(asked.get(), state) : nullptr;
    const Duration took = udp::Now() - making;
    lock.lock();
    asking = false;
    changed.notify_all();
    if (!has_page) continue;
    wanted.reset();
    asio::post(io, [this, made, took] { OnPage(made, took); });
  }
}

// Under the lock.
void HealthPort::Impl::NoteState(const LoopState& state) {
  silent_since = state.answers ? Instant::Infinite() : std::min(silent_since, asked_since);
  not_ready = state.answers ? state.not_ready : "the loop does not answer";
}

// Null: the loop does not answer, or memory is out.
Page HealthPort::Impl::MakePage(const HealthSource* asked, const LoopState& state) try {
  MetricPage out;
  if (!state.answers || (asked != nullptr && !asked->collect(&out))) return nullptr;
  HealthCounters own;
  bool ready = false;
  {
    const std::lock_guard lock(mutex);
    own = *wanted;
    ready = NotReady().empty();
  }
  out.AddFamily("longhaul_build_info", "1, with the program and its version", false,
                {{1, {{"program", program}, {"version", kVersion}}}});
  out.AddFamily("longhaul_start_timestamp_seconds", "when the process began, Unix time", false, {{started}});
  out.AddFamily("longhaul_last_progress_timestamp_seconds",
                "when the work came further last (a round, a message of the site), Unix time; at first: when "
                "the process began",
                false, {{progress.load(std::memory_order_relaxed)}});
  out.AddFamily("longhaul_ready", "1 while /readyz says so, else 0", false, {{ready ? 1.0 : 0.0}});
  out.Add<HealthCounters>("health", kHealthCounters, {{&own}});
  return std::make_shared<const std::string>(out.Text());
} catch (const std::bad_alloc&) {
  return nullptr;
}

std::string HealthPort::Impl::NotHealthy() {
  const std::lock_guard lock(mutex);
  const Instant since = std::min(silent_since, asked_since);
  const Duration silence = udp::Now() - since;
  if (since.IsInfinite() || silence < bounds.stands_still) return "";
  char text[80];
  std::snprintf(text, sizeof text, "the loop has not answered for %.0f s",
                std::chrono::duration<double>(silence).count());
  return text;
}

std::string HealthPort::Impl::NotReady() { return stopping.empty() ? not_ready : stopping; }

// --- Serving ---

void HealthPort::Impl::Serve() {
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

void HealthPort::Impl::Accept() {
  if (accepting) return;
  acceptor.async_accept([this](const std::error_code& error, tcp::socket socket) {
    accepting = false;
    if (!error) Admit(std::move(socket));
    if (error || !newcomers.Has(udp::Now())) return PauseAccepting();
    Accept();
  });
  accepting = true;
}

void HealthPort::Impl::PauseAccepting() {
  ++counters.paused;
  pause.expires_after(kPause);
  pause.async_wait([this](const std::error_code&) {
    accepting = false;
    Accept();
  });
  accepting = true;
}

void HealthPort::Impl::Admit(tcp::socket socket) {
  (void)newcomers.Take(udp::Now());
  ++counters.connections;
  if (connections.size() >= bounds.connections) {
    ++counters.displaced;
    Close(Ref(connections.front()));
  }
  const Ref connection = std::make_shared<Connection>(std::move(socket));
  connections.push_back(connection);
  counters.open = connections.size();
  connection->deadline.expires_after(bounds.deadline);
  connection->deadline.async_wait([this, connection](const std::error_code& error) {
    if (error || connection->closed) return;
    ++counters.late;
    Close(connection);
  });
  Read(connection);
}

void HealthPort::Impl::Read(const Ref& connection) {
  const auto on_bytes = [this, connection](const std::error_code& error, size_t bytes) {
    if (connection->closed) return;
    if (error) {
      ++counters.broken;
      return Close(connection);
    }
    switch (connection->request.Take({connection->buffer.data(), bytes})) {
      case HttpRequest::State::kMore:
        return Read(connection);
      case HttpRequest::State::kWhole:
        return OnRequest(connection);
      case HttpRequest::State::kRefused:
        return Answer(connection, connection->request.refusal(),
                      std::string(ReasonOf(connection->request.refusal())) + "\n");
    }
  };
  connection->socket.async_read_some(asio::buffer(connection->buffer), on_bytes);
}

void HealthPort::Impl::OnRequest(const Ref& connection) {
  const std::string& path = connection->request.path();
  if (path == "/metrics") return AnswerMetrics(connection);
  if (path != "/healthz" && path != "/readyz")
    return Answer(connection, 404, "there are /healthz, /readyz and /metrics\n");
  std::string wrong = NotHealthy();
  if (wrong.empty() && path == "/readyz") {
    const std::lock_guard lock(mutex);
    wrong = NotReady();
  }
  Answer(connection, wrong.empty() ? 200 : 503, (wrong.empty() ? "ok" : wrong) + "\n");
}

void HealthPort::Impl::AnswerMetrics(const Ref& connection) {
  if (page && udp::Now() < page_good_until) return Answer(connection, 200, page);
  scrapes.push_back(connection);
  if (scrapes.size() > 1) return;  // it is being made, or on its way to OnPage
  const std::lock_guard lock(mutex);
  wanted = counters;
  changed.notify_all();
}

void HealthPort::Impl::OnPage(const Page& made, Duration took) {
  page = made;
  page_good_until = udp::Now() + std::max<Duration>(bounds.page_lasts, 10 * took);
  std::list<Ref> waiting;
  waiting.swap(scrapes);
  for (const Ref& connection : waiting) {
    if (connection->closed) continue;
    if (made) {
      Answer(connection, 200, made);
    } else {
      Answer(connection, 503, "the loop does not answer\n");
    }
  }
}

void HealthPort::Impl::Answer(const Ref& connection, int code, const Page& body) {
  ++counters.answers;
  if (code != 200 && code != 503) ++counters.refused;
  connection->head = HeadOf(code, body->size());
  connection->body = body;
  std::vector<asio::const_buffer> parts = {asio::buffer(connection->head)};
  if (!connection->request.is_head()) parts.push_back(asio::buffer(*body));
  asio::async_write(connection->socket, parts, [this, connection](const std::error_code& error, size_t) {
    if (connection->closed) return;
    connection->body = nullptr;
    std::error_code failed = error;
    if (!failed) connection->socket.shutdown(tcp::socket::shutdown_send, failed);
    if (!failed) return Linger(connection);
    ++counters.broken;
    Close(connection);
  });
}

void HealthPort::Impl::Linger(const Ref& connection) {
  connection->socket.async_read_some(asio::buffer(connection->buffer),
                                     [this, connection](const std::error_code& error, size_t bytes) {
                                       if (connection->closed) return;
                                       connection->ignored += bytes;
                                       if (error || connection->ignored > kMostIgnored)
                                         return Close(connection);
                                       Linger(connection);
                                     });
}

void HealthPort::Impl::Close(const Ref& connection) {
  connection->closed = true;
  connection->deadline.cancel();
  std::error_code ignored;
  connection->socket.close(ignored);
  connections.remove(connection);
  scrapes.remove(connection);
  counters.open = connections.size();
}

}  // namespace longhaul::health
