#include "worker/site/site_relay.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/units_text.h"
#include "worker/site/aside.h"
#include "worker/site/collectives.h"
#include "worker/site/mailbox.h"
#include "worker/site/rank_desk.h"
#include "worker/site/relay_tensors.h"
#include "worker/site/site_clock.h"

namespace longhaul::site {
namespace {

// How often the client is asked whether it still works, and ranks whether they do.
constexpr Duration kLookEvery = std::chrono::milliseconds(100);
// For ranks to close their devices, once they know the end.
constexpr Duration kLastWords = std::chrono::seconds(2);

std::string NameOf(uint8_t rank) { return "rank " + std::to_string(rank) + " of the site"; }

}  // namespace

class SiteRelay::Impl {
 public:
  explicit Impl(const RelayOptions& options) : options_(options), aside_([this] { Wake(); }) {}
  ~Impl();
  Status Start();
  void OnRank(uint8_t rank, bool here);
  void Stop();
  ClientStats stats() const;

 private:
  void Wake();
  void Run();
  Status Open();
  void Loop();
  void Connect();
  void OnConnected(Result<Client> client);
  void OnMessage(const SiteMessage& message);
  void OnHello(const SiteMessage& message);
  void Welcome(uint8_t rank);
  void OnDevice(uint8_t rank, bool here);
  void Remove(uint8_t rank, const Status& why, bool told);
  void TakeLeave(const SiteMessage& message);
  void TakeBarrier(const SiteMessage& message);
  void AdvanceBarriers();
  void LeaveIfEmpty();
  void Look(Instant now);
  void Fail(const Status& why);
  void Log(LogLevel level, const std::string& text) const {
    if (options_.connect.log) options_.connect.log(level, text);
  }
  uint8_t ranks() const { return static_cast<uint8_t>(collectives_->own_rank()); }

  const RelayOptions options_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<Mailbox*> bell_{nullptr};
  std::unique_ptr<Mailbox> mailbox_;
  Aside aside_;
  mutable std::mutex mutex_;
  std::shared_ptr<Client> client_;  // written under the lock
  ClientStats last_stats_;          // when the client is gone; under the lock

  // The thread's.
  std::optional<Collectives> collectives_;
  std::optional<RankDesk> desk_;
  std::optional<RelayTensors> tensors_;
  std::map<std::string, std::map<uint8_t, uint64_t>> barriers_;
  uint64_t devices_ = 0;  // that are open, as far as the daemon says
  Status end_;            // of the site's part in the job
  Status failure_;
  bool leaving_ = false;
  Instant over_ = Instant::Infinite();  // when on_end is called at the latest
  Instant looked_;
};

// --- Life ---

Status SiteRelay::Impl::Start() {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for the site's relay: ") + error.what()};
  }
  return {};
}

SiteRelay::Impl::~Impl() { Stop(); }

void SiteRelay::Impl::Stop() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
}

void SiteRelay::Impl::Wake() {
  if (Mailbox* const bell = bell_.load()) bell->Wake();
}

void SiteRelay::Impl::Run() {
  Status end = Open();
  if (end.ok()) {
    Loop();
    end = failure_.ok() ? end_ : failure_;
  }
  // Ends what aside waits for.
  if (client_ && !leaving_)
    (void)client_->Leave({StatusCode::kCancelled, end.ok() ? "the site's relay ends" : end.message()});
  {
    const std::lock_guard lock(mutex_);
    if (client_) last_stats_ = client_->stats();
  }
  if (mailbox_) mailbox_->device().Close();  // while its daemon works
  if (!stop_ && options_.on_end) options_.on_end(end);
}

Status SiteRelay::Impl::Open() {
  // The relay is the last rank; its daemon says how many there are.
  std::optional<offload::Device> device;
  for (int rank = RankDesk::kMaxRanks; rank >= 0 && !device; --rank) {
    auto opened =
        offload::Device::Open(options_.where, {.node = 0, .rank = static_cast<uint8_t>(rank), .site = {}});
    if (opened.ok()) {
      device.emplace(std::move(*opened));
    } else if (opened.status().code() != StatusCode::kInvalidArgument) {
      return opened.status();
    }
  }
  if (!device || device->site().ranks_per_node < 2) {
    return {StatusCode::kInvalidArgument, "the site at " + options_.where + " has no rank for its relay"};
  }
  const auto own = static_cast<uint8_t>(device->site().ranks_per_node - 1);
  auto mailbox = Mailbox::Open(std::move(*device));
  if (!mailbox.ok()) return mailbox.status();
  mailbox_ = std::move(*mailbox);
  collectives_.emplace(mailbox_.get(), own, options_.connect.idle_timeout);
  desk_.emplace(own,
                [this](uint8_t rank, const SiteMessage& message) { (void)mailbox_->Send(rank, message); });
  tensors_.emplace(mailbox_.get(), &*desk_, &*collectives_, &aside_,
                   [this](uint8_t rank, const Status& why) { Remove(rank, why, false); });
  bell_ = mailbox_.get();
  return {};
}

void SiteRelay::Impl::Loop() {
  Connect();
  while (!stop_) {
    // What the daemon said of a rank counts before what came of its death.
    const bool alive = mailbox_->Poll(
        [this] { aside_.RunDone(); }, [this](const SiteMessage& message) { OnMessage(message); },
        [this](const offload::Completion& c) { collectives_->OnCompletion(c); });
    if (!alive) {
      failure_ = {StatusCode::kPeerDead, "the site's longhaul-offload has ended"};
      return;
    }
    const Instant now = Now();
    if (now - looked_ >= kLookEvery) Look(now);
    if (now >= over_ || (!over_.IsInfinite() && devices_ == 0)) return;
    mailbox_->Wait(looked_ + kLookEvery - now);
  }
}

void SiteRelay::Impl::Connect() {
  const bool asked = aside_.Run([this] {
    auto client = std::make_shared<Result<Client>>(Client::Connect(options_.connect));
    aside_.Done([this, client] { OnConnected(std::move(*client)); });
  });
  if (!asked) Fail({StatusCode::kInternal, "no thread for the site's connection"});
}

void SiteRelay::Impl::OnConnected(Result<Client> client) {
  if (!client.ok()) return Fail(client.status());
  auto connected = std::make_shared<Client>(std::move(*client));
  {
    const std::lock_guard lock(mutex_);
    client_ = connected;
  }
  tensors_->SetClient(connected);
  Log(LogLevel::kInfo, "the site is member " + std::to_string(connected->rank()) + " of " +
                           std::to_string(connected->world_size()) + ", with " + std::to_string(ranks()) +
                           " ranks");
  for (uint8_t rank = 0; rank < ranks(); ++rank) {
    if ((desk_->here() >> rank & 1) != 0) Welcome(rank);
  }
  tensors_->AdvanceAll();
}

ClientStats SiteRelay::Impl::stats() const {
  std::shared_ptr<Client> client;
  {
    const std::lock_guard lock(mutex_);
    if (!client_ || last_stats_.packets_sent > 0) return last_stats_;
    client = client_;
  }
  return client->stats();
}

void SiteRelay::Impl::Look(Instant now) {
  looked_ = now;
  const uint64_t silent = desk_->SilentSince(now - options_.connect.idle_timeout);
  for (uint8_t rank = 0; rank < ranks(); ++rank) {
    if ((silent >> rank & 1) == 0) continue;
    Remove(rank,
           {StatusCode::kPeerDead,
            NameOf(rank) + " was silent for " + SecondsText(options_.connect.idle_timeout)},
           false);
  }
  if (!client_ || leaving_ || !failure_.ok()) return;
  if (const Status status = client_->status(); !status.ok()) Fail(status);
}

void SiteRelay::Impl::Fail(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  desk_->FailAll(why);
  for (uint8_t rank = 0; rank < ranks(); ++rank) tensors_->Forget(rank, std::nullopt);
  barriers_.clear();
  over_ = Now() + kLastWords;
}

// --- Ranks ---

void SiteRelay::Impl::OnRank(uint8_t rank, bool here) {
  aside_.Done([this, rank, here] { OnDevice(rank, here); });
}

void SiteRelay::Impl::OnDevice(uint8_t rank, bool here) {
  if (rank >= ranks()) return;
  const uint64_t bit = uint64_t{1} << rank;
  devices_ = here ? devices_ | bit : devices_ & ~bit;
  if (!here && (desk_->here() & bit) != 0) {
    Remove(rank, {StatusCode::kPeerDead, NameOf(rank) + " has died"}, false);
  }
}

// told: the rank has said so itself.
void SiteRelay::Impl::Remove(uint8_t rank, const Status& why, bool told) {
  desk_->Remove(rank, told ? Status() : why);
  if (!why.ok() && end_.ok()) end_ = why;
  const auto left = static_cast<uint32_t>(__builtin_popcountll(desk_->here()));
  if (!why.ok())
    Log(LogLevel::kWarning, why.message() + ": the site goes on with " + std::to_string(left) + " ranks");
  tensors_->Forget(rank, std::nullopt);
  for (auto& [name, parts] : barriers_) parts.erase(rank);
  tensors_->AdvanceAll();
  AdvanceBarriers();
  LeaveIfEmpty();
}

void SiteRelay::Impl::OnMessage(const SiteMessage& message) {
  if (message.kind == SiteKind::kHello) return OnHello(message);
  if (!desk_->IsCurrent(message, Now())) return;
  switch (message.kind) {
    case SiteKind::kDeclare:
    case SiteKind::kStep:
    case SiteKind::kPull:
    case SiteKind::kScores:
      if (desk_->Take(message)) tensors_->Take(message);
      return;
    case SiteKind::kBarrier:
      if (desk_->Take(message)) TakeBarrier(message);
      return;
    case SiteKind::kLeave:
      return TakeLeave(message);
    case SiteKind::kTaken:
      if (!desk_->Close(message.rank, message.seq)) return;
      tensors_->Forget(message.rank, message.seq);
      for (auto& [name, parts] : barriers_) {
        std::erase_if(
            parts, [&message](const auto& p) { return p.first == message.rank && p.second == message.seq; });
      }
      return;
    default:
      return;  // what only relays say
  }
}

void SiteRelay::Impl::OnHello(const SiteMessage& message) {
  if (message.rank >= ranks()) return;
  if (desk_->Hello(message.rank, message.session, Now())) {
    tensors_->Forget(message.rank, std::nullopt);
    for (auto& [name, parts] : barriers_) parts.erase(message.rank);
    tensors_->AdvanceAll();
  }
  if (!failure_.ok()) desk_->FailAll(failure_);
  if (!desk_->IsCurrent(message, Now())) return;
  if (client_) return Welcome(message.rank);
  SiteMessage pending;
  pending.kind = SiteKind::kPending;
  desk_->Tell(message.rank, pending);
}

void SiteRelay::Impl::Welcome(uint8_t rank) {
  SiteMessage welcome;
  welcome.kind = SiteKind::kWelcome;
  welcome.tensor = rank;
  welcome.mid = ranks();
  welcome.value = uint64_t{client_->rank()} << 32 | client_->world_size();
  welcome.body = EncodeJob(client_->settings());
  desk_->Tell(rank, std::move(welcome));
}

void SiteRelay::Impl::TakeLeave(const SiteMessage& message) {
  desk_->SetLeft();
  Status why = message.status();
  if (!why.ok()) why = {why.code(), NameOf(message.rank) + " leaves: " + why.message()};
  Remove(message.rank, why, true);
  (void)desk_->IsCurrent(message, Now());  // answers it
}

void SiteRelay::Impl::LeaveIfEmpty() {
  if (desk_->here() != 0 || !desk_->any_left() || leaving_ || !client_ || !failure_.ok()) return;
  leaving_ = true;
  const bool asked = aside_.Run([this, client = client_, why = end_] {
    auto left = std::make_shared<Status>(client->Leave(why));
    aside_.Done([this, left] {
      if (!left->ok() && end_.ok()) end_ = *left;
      over_ = Now() + kLastWords;
    });
  });
  if (!asked) over_ = Now();
}

// --- Barriers ---

void SiteRelay::Impl::TakeBarrier(const SiteMessage& message) {
  barriers_[message.text][message.rank] = message.seq;
  AdvanceBarriers();
}

void SiteRelay::Impl::AdvanceBarriers() {
  std::erase_if(barriers_, [](const auto& barrier) { return barrier.second.empty(); });
  for (auto at = barriers_.begin(); at != barriers_.end();) {
    uint64_t in = 0;
    for (const auto& [rank, seq] : at->second) in |= uint64_t{1} << rank;
    const uint64_t missing = desk_->missing_at_start() | (desk_->here() & ~in);
    for (const auto& [rank, seq] : at->second) desk_->SetMissing(rank, seq, missing);
    if (missing != 0 || !client_) {
      ++at;
      continue;
    }
    const auto end = [this, parts = at->second](const Status& outcome) {
      for (const auto& [rank, seq] : parts) desk_->End(rank, seq, outcome);
    };
    const bool asked = aside_.Run([this, client = client_, name = at->first, end] {
      const Status outcome = client->Barrier(name);
      aside_.Done([end, outcome] { end(outcome); });
    });
    if (!asked) end({StatusCode::kResourceExhausted, "the site waits at too many barriers"});
    at = barriers_.erase(at);
  }
}

// --- The handle ---

Result<std::unique_ptr<SiteRelay>> SiteRelay::Start(const RelayOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  if (Status s = impl->Start(); !s.ok()) return s;
  return std::unique_ptr<SiteRelay>(new SiteRelay(std::move(impl)));
}

SiteRelay::SiteRelay(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SiteRelay::~SiteRelay() = default;
void SiteRelay::Stop() { impl_->Stop(); }
void SiteRelay::OnRank(uint8_t rank, bool here) { impl_->OnRank(rank, here); }
ClientStats SiteRelay::stats() const { return impl_->stats(); }

}  // namespace longhaul::site
