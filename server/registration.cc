#include "server/registration.h"

#include <system_error>
#include <utility>

#include "transport/udp/clock.h"
#include "transport/udp/resolve.h"

namespace longhaul::server {

Result<std::unique_ptr<Registration>> Registration::Open(const Options& options) {
  auto registration = std::unique_ptr<Registration>(new Registration(options));
  if (Status asked = registration->Run(); !asked.ok()) return asked;
  Status why;
  {
    std::unique_lock lock(registration->mutex_);
    // Ends by itself: the core gives up after kPatience.
    registration->changed_.wait(
        lock, [&] { return registration->welcome_.has_value() || !registration->failure_.ok(); });
    why = registration->failure_;
  }
  if (!why.ok()) return why;
  return registration;
}

Status Registration::Run() {
  auto security = keys::LoadSecurity(options_.keys);
  if (!security.ok()) return security.status();
  security_ = *std::move(security);
  const auto first = udp::ResolvePeer(options_.first_server);
  if (!first.ok()) return {first.status().code(), "'first_server': " + first.status().message()};
  auto socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*first));
  if (!socket.ok()) return socket.status();
  RegistrationOptions core{.join = options_.join,
                           .first_server = options_.first_server,
                           .timeout = kPatience,
                           .security = security_.security()};
  core.join.set_job(security_.job);
  core.say = [this](const Status& status) {
    const std::string first_server = core_->FirstServer();
    options_.log(status.ok() ? LogLevel::kInfo : LogLevel::kWarning,
                 status.ok() ? first_server + " has this one again"
                             : first_server + " is not reached: " + status.ToString());
  };
  // In this thread, which has nothing else to do meanwhile.
  core.resolve = [name = options_.first_server] {
    const auto found = udp::ResolvePeer(name);
    return found.ok() ? std::optional(*found) : std::nullopt;
  };
  core.answer = [this](const Result<control::ServerWelcome>& answer) { OnAnswer(answer); };
  core.hand_over = [this] {
    std::unique_lock lock(mutex_);
    hands_over_ = true;
    const auto hand_over = hand_over_;
    lock.unlock();
    if (hand_over) hand_over();
  };
  core_.emplace(std::move(core), Random(udp::EntropySeed()));
  auto loop = udp::EventLoop::Create(&*core_, *std::move(socket));
  if (!loop.ok()) return loop.status();
  loop_ = *std::move(loop);
  core_->Start(udp::Now(), *first);
  try {
    thread_ = std::thread([this] {
      loop_->Run();
      if (!loop_->failure().ok()) OnAnswer(loop_->failure());
    });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal,
            std::string("no thread for the connection to the first server: ") + error.what()};
  }
  return {};
}

Registration::~Registration() {
  if (!thread_.joinable()) return;
  loop_->Stop();
  thread_.join();
}

void Registration::OnAnswer(const Result<control::ServerWelcome>& answer) {
  std::function<void(const Status&)> end;
  {
    const std::lock_guard lock(mutex_);
    if (answer.ok()) {
      welcome_ = *answer;
    } else {
      failure_ = answer.status();
      end = std::exchange(end_, {});
    }
    changed_.notify_all();
  }
  if (end) end(answer.status());
}

void Registration::SetKeys(std::vector<std::shared_ptr<transport::Security>> keys) {
  (void)loop_->Post([this, keys = std::move(keys)] { core_->SetKeys(keys); });
}

void Registration::Leave() {
  (void)loop_->Post([this] { core_->Leave(); });
}

void Registration::OnHandOver(const std::function<void()>& hand_over) {
  std::unique_lock lock(mutex_);
  hand_over_ = hand_over;
  const bool already = hands_over_;
  lock.unlock();
  if (already) hand_over();
}

void Registration::OnEnd(std::function<void(const Status&)> end) {
  std::unique_lock lock(mutex_);
  if (failure_.ok()) {
    end_ = std::move(end);
    return;
  }
  const Status why = failure_;
  lock.unlock();
  end(why);
}

}  // namespace longhaul::server
