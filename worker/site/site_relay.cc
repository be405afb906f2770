#include "worker/site/site_relay.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/units_text.h"
#include "worker/site/leadership.h"
#include "worker/site/mailbox.h"
#include "worker/site/site_clock.h"
#include "worker/site/site_leader.h"

namespace longhaul::site {
namespace {

// For ranks to close their devices and for other relays to learn it, once the end is known.
constexpr Duration kLastWords = std::chrono::seconds(2);

std::string NodeName(uint8_t node) { return "node " + std::to_string(node); }

}  // namespace

class SiteRelay::Impl {
 public:
  explicit Impl(const RelayOptions& options) : options_(options) {}
  ~Impl() { Stop(); }
  Status Start();
  void OnRank(uint8_t node, uint8_t rank, bool here);
  void Stop();
  ClientStats stats() const;
  std::shared_ptr<Client> client() const;
  bool follows() const { return follows_; }
  Duration silence() const { return Duration(Now().nanoseconds() - last_look_); }

 private:
  void Wake();
  void Run();
  Status Open();
  void Loop();
  bool Turn();
  void HandOver();
  void RunNews();
  void OnDevice(uint8_t rank, bool here);
  void OnMessage(const SiteMessage& message);
  void OnBeat(const SiteMessage& beat);
  void OnOver(const SiteMessage& message);
  void OnGone(uint64_t ranks, const std::string& how);
  void Look(Instant now);
  void LookAtNodes(Instant now);
  void SayRefused();
  void Lead(Instant now, uint64_t before);
  void Retire();
  void SayMoved(uint8_t rank);
  Leadership::Own Own() const;
  void SendBeats();
  void SayOver(const Status& end);
  void TellOthers(const SiteMessage& message);
  // Since when the site's part in the job is over.
  Instant over() const { return leader_ ? std::min(over_, leader_->over()) : over_; }
  bool MayGo(Instant now) const;
  void Log(LogLevel level, const std::string& text) const {
    if (options_.connect.log) options_.connect.log(level, text);
  }

  struct News {
    uint8_t node = 0;
    uint8_t rank = 0;
    bool here = false;
  };

  const RelayOptions options_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<Mailbox*> bell_{nullptr};
  std::atomic<bool> follows_{false};
  std::atomic<int64_t> last_look_{Now().nanoseconds()};  // for other threads
  std::unique_ptr<Mailbox> mailbox_;
  mutable std::mutex mutex_;
  std::vector<News> news_;              // under the lock
  std::unique_ptr<SiteLeader> leader_;  // written under the lock
  ClientStats last_stats_;              // of a leader that is gone; under the lock

  // The thread's.
  SiteShape shape_;
  uint8_t node_ = 0;
  uint64_t session_ = NewSession();
  std::optional<Leadership> leadership_;
  std::map<uint8_t, uint64_t> sessions_;  // of ranks that have said hello, to be told who leads
  uint64_t devices_ = 0;                  // ranks whose devices are open, as far as the daemon says
  uint64_t alive_ = 0;                    // nodes
  uint64_t known_leader_ = 0;
  Status end_;
  Instant over_ = Instant::Infinite();
  Instant looked_;
  uint64_t refused_ = 0;
  bool resigns_ = false;
  Leadership::Own said_;
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

void SiteRelay::Impl::Stop() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
}

void SiteRelay::Impl::Wake() {
  if (Mailbox* const bell = bell_.load()) bell->Wake();
}

void SiteRelay::Impl::Run() {
  end_ = Open();
  if (end_.ok()) Loop();
  if (stop_ && leader_ && leadership_->leads()) HandOver();
  Retire();
  if (mailbox_) mailbox_->device().Close();  // while its daemon works
  if (!stop_ && options_.on_end) options_.on_end(end_);
}

Status SiteRelay::Impl::Open() {
  // The relay is the last rank; its daemon says how many there are.
  std::optional<offload::Device> device;
  for (int rank = RankDesk::kMaxRanks; rank >= 0 && !device; --rank) {
    auto opened = offload::Device::Open(
        options_.where,
        {.node = offload::DeviceOptions::kDaemonsNode, .rank = static_cast<uint8_t>(rank), .site = {}});
    if (opened.ok()) {
      device.emplace(std::move(*opened));
    } else if (opened.status().code() != StatusCode::kInvalidArgument) {
      return opened.status();
    }
  }
  if (!device || device->site().ranks_per_node < 2) {
    return {StatusCode::kInvalidArgument, "the site at " + options_.where + " has no rank for its relay"};
  }
  shape_ = SiteShape::Of(device->site());
  if (shape_.ranks() > RankDesk::kMaxRanks - 1u) {
    return {StatusCode::kInvalidArgument, "a site with a server has 62 ranks at most, of all nodes"};
  }
  node_ = device->node();
  auto mailbox = Mailbox::Open(std::move(*device));
  if (!mailbox.ok()) return mailbox.status();
  mailbox_ = std::move(*mailbox);
  leadership_.emplace(node_, options_.one_node ? shape_.nodes : uint8_t{1}, session_,
                      Leadership::SilenceOf(options_.connect.idle_timeout), Now());
  leadership_->SetIncarnation(options_.connect.incarnation.value_or(0));
  bell_ = mailbox_.get();
  return {};
}

void SiteRelay::Impl::Loop() {
  while (!stop_) {
    if (!Turn()) return;
    const Instant now = Now();
    if (now - looked_ >= Leadership::kBeatEvery) Look(now);
    if (Own() != said_) SendBeats();  // others' sums wait for such news, and a successor needs them
    if (MayGo(now)) {
      if (leader_) end_ = leader_->end();
      return;
    }
    mailbox_->Wait(looked_ + Leadership::kBeatEvery - now);
  }
}

// False: the daemon has ended.
bool SiteRelay::Impl::Turn() {
  // What the daemon said of a rank counts before what came of its death.
  const bool alive = mailbox_->Poll(
      [this] {
        RunNews();
        if (leader_) leader_->RunDone();
      },
      [this](const SiteMessage& message) { OnMessage(message); },
      [this](const offload::Completion& c) {
        if (leader_) leader_->OnCompletion(c);
      });
  if (alive) return true;
  end_ = {StatusCode::kPeerDead, "the site's longhaul-offload has ended"};
  // As if this process had ended with it: another node's takes over.
  if (leader_ && std::popcount(leadership_->alive(Now())) > 1) (void)leader_->Retire();
  return false;
}

// Another node's relay goes on, if there is one: until it leads.
void SiteRelay::Impl::HandOver() {
  resigns_ = true;
  const Instant end = Now() + kLastWords;
  while (std::popcount(leadership_->alive(Now())) > 1 && over().IsInfinite()) {
    SendBeats();
    if (!Turn() || Now() > end) break;
    if (!leadership_->leads() && leader_->Retire()) return;
    mailbox_->Wait(Leadership::kBeatEvery);
  }
  if (leadership_->leads()) SayOver({StatusCode::kCancelled, "the site's relay ends"});
}

bool SiteRelay::Impl::MayGo(Instant now) const {
  if (over().IsInfinite()) return false;
  if (now - over() >= kLastWords) return true;
  if (devices_ != 0) return false;
  if (!options_.one_node || !leadership_->leads()) return true;
  // Those of other nodes have their answers, and the relays there have heard of the end a few times.
  uint64_t elsewhere = 0;
  const uint64_t alive = leadership_->alive(now);
  for (uint8_t node = 0; node < shape_.nodes; ++node) {
    if ((alive >> node & 1) != 0 && node != node_) elsewhere |= leadership_->ranks(node);
  }
  return elsewhere == 0 && (alive == uint64_t{1} << node_ || now - over() >= 3 * Leadership::kBeatEvery);
}

ClientStats SiteRelay::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  return leader_ ? leader_->stats() : last_stats_;
}

std::shared_ptr<Client> SiteRelay::Impl::client() const {
  const std::lock_guard lock(mutex_);
  return leader_ ? leader_->client() : nullptr;
}

// Four tasks of the beat: who leads, who is gone, what the leader has to do from time to time, and the beat.
void SiteRelay::Impl::Look(Instant now) {
  looked_ = now;
  last_look_ = now.nanoseconds();
  if (leadership_->OnLook(now) && leader_) leader_->OnLate(now);
  const uint64_t before = leadership_->leader();
  if (leader_ && !leadership_->leads() && leader_->Retire()) Retire();
  if (!leader_ && over_.IsInfinite() && leadership_->Claim(now)) Lead(now, before);
  follows_ = !leader_ && leadership_->leader() != 0;
  LookAtNodes(now);
  if (leader_ && leadership_->leads()) leader_->Look(now);
  SayRefused();
  if (leader_) leadership_->LimitSilence(Leadership::SilenceOf(leader_->idle_timeout()));
  SendBeats();
}

// --- Who leads ---

void SiteRelay::Impl::Lead(Instant now, uint64_t before) {
  SiteLeader::Options options;
  options.connect = options_.connect;
  options.shape = shape_;
  options.leader = leadership_->leader();
  if (options_.one_node) options.grace = leadership_->silence();
  if (before != 0) {
    // As another process of this member: no clock of an earlier one is ahead of it.
    const bool counted = options_.connect.incarnation.has_value();
    const uint64_t now_ns = counted ? 0 : WallClock();
    leadership_->SetIncarnation(std::max(now_ns, leadership_->incarnation() + 1));
    options.connect.incarnation = leadership_->incarnation();
    options.any_left = leadership_->any_left();
    if (leadership_->complete()) {
      uint64_t expected = devices_;
      const uint64_t alive = leadership_->alive(now);
      for (uint8_t node = 0; node < shape_.nodes; ++node) {
        if (node != node_ && (alive >> node & 1) != 0) expected |= leadership_->ranks(node);
      }
      options.expected = expected;
    }
    const uint8_t from = NodeOfLeader(before);
    const bool silent = from != node_ && !leadership_->resigned();
    const Takeover takeover{node_, from, silent ? leadership_->silence() : Duration(0)};
    Log(LogLevel::kWarning, NodeName(node_) + " of the site takes over: the relay of " + NodeName(from) +
                                (silent          ? " was silent for " + SecondsText(takeover.silence)
                                 : from == node_ ? " was started again"
                                                 : " hands over"));
    if (options_.on_takeover) options_.on_takeover(takeover);
  }
  auto leader = std::make_unique<SiteLeader>(options, mailbox_.get(), [this] { Wake(); });
  {
    const std::lock_guard lock(mutex_);
    leader_ = std::move(leader);
  }
  leader_->Connect();
}

void SiteRelay::Impl::Retire() {
  std::unique_ptr<SiteLeader> leader;
  {
    const std::lock_guard lock(mutex_);
    if (!leader_) return;
    last_stats_ = leader_->stats();
    leader = std::move(leader_);
  }
}

// Of a flood, every doubling.
void SiteRelay::Impl::SayRefused() {
  if (std::bit_width(mailbox_->refused()) == std::bit_width(refused_)) return;
  refused_ = mailbox_->refused();
  const Place of = mailbox_->refused_of();
  Log(LogLevel::kWarning,
      "messages in another's name, or that claim what cannot be, were refused: " + std::to_string(refused_) +
          ", the last of rank " + std::to_string(of.slot) + " of " + NodeName(of.node));
}

void SiteRelay::Impl::LookAtNodes(Instant now) {
  const uint64_t alive = leadership_->alive(now);
  for (uint8_t node = 0; node < shape_.nodes; ++node) {
    if (((alive_ & ~alive) >> node & 1) != 0) {
      OnGone(shape_.RanksOf(node),
             "is gone: " + NodeName(node) + " was silent for " + SecondsText(leadership_->silence()));
    }
  }
  alive_ = alive;
}

void SiteRelay::Impl::OnGone(uint64_t ranks, const std::string& how) {
  if (!leader_ || !leadership_->leads()) return;
  for (uint64_t rest = ranks; rest != 0; rest &= rest - 1) {
    leader_->OnGone(static_cast<uint8_t>(std::countr_zero(rest)), how);
  }
}

Leadership::Own SiteRelay::Impl::Own() const {
  return {.ranks = resigns_ ? 0 : devices_,
          .complete = leader_ && leader_->complete(),
          .any_left = leader_ && leader_->any_left(),
          .resigns = resigns_};
}

void SiteRelay::Impl::SendBeats() {
  if (leadership_->leader() != known_leader_) {
    known_leader_ = leadership_->leader();
    for (const auto& [rank, session] : sessions_) SayMoved(rank);
  }
  if (leader_ && leadership_->leads() && !over().IsInfinite()) return SayOver(leader_->end());
  said_ = Own();
  TellOthers(leadership_->Beat(said_));
}

void SiteRelay::Impl::SayOver(const Status& end) {
  SiteMessage over;
  over.kind = SiteKind::kOver;
  over.rank = node_;
  over.session = session_;
  over.leader = leadership_->leader();
  over.SetStatus(end);
  TellOthers(over);
}

void SiteRelay::Impl::TellOthers(const SiteMessage& message) {
  for (uint8_t node = 0; options_.one_node && node < shape_.nodes; ++node) {
    if (node != node_) (void)mailbox_->Send({node, shape_.relay_slot()}, message);
  }
}

void SiteRelay::Impl::SayMoved(uint8_t rank) {
  SiteMessage moved;
  moved.kind = SiteKind::kMoved;
  moved.rank = rank;
  moved.session = sessions_[rank];
  moved.leader = leadership_->leader();
  if (moved.leader != 0) (void)mailbox_->Send(shape_.PlaceOf(rank), moved);
}

// --- What comes ---

void SiteRelay::Impl::OnRank(uint8_t node, uint8_t rank, bool here) {
  {
    const std::lock_guard lock(mutex_);
    news_.push_back({node, rank, here});
  }
  Wake();
}

void SiteRelay::Impl::RunNews() {
  std::vector<News> news;
  {
    const std::lock_guard lock(mutex_);
    news.swap(news_);
  }
  for (const News& what : news) {
    if (what.rank < shape_.ranks_per_node) OnDevice(shape_.IndexOf({what.node, what.rank}), what.here);
  }
}

void SiteRelay::Impl::OnDevice(uint8_t rank, bool here) {
  const uint64_t bit = uint64_t{1} << rank;
  devices_ = here ? devices_ | bit : devices_ & ~bit;
  if (here) return;
  sessions_.erase(rank);
  OnGone(bit, "has died");
}

void SiteRelay::Impl::OnMessage(const SiteMessage& message) {
  if (message.kind == SiteKind::kBeat) return OnBeat(message);
  if (message.kind == SiteKind::kOver) return OnOver(message);
  const bool local = message.rank < shape_.ranks() && shape_.PlaceOf(message.rank).node == node_;
  if (message.kind == SiteKind::kHello && local) sessions_[message.rank] = message.session;
  if (leadership_->leads() && leader_) return leader_->OnMessage(message);
  if (message.kind == SiteKind::kHello && local) SayMoved(message.rank);
}

void SiteRelay::Impl::OnBeat(const SiteMessage& beat) {
  if (beat.rank >= shape_.nodes || beat.rank == node_) return;
  const uint64_t had = leadership_->ranks(beat.rank);
  const bool restarted = leadership_->OnBeat(beat, Now());
  if (restarted) {
    // Those that it has may have said hello before it was heard.
    OnGone(shape_.RanksOf(beat.rank) & ~beat.ranks,
           "is gone: " + NodeName(beat.rank) + " has another longhaul-offload");
  } else if (had != leadership_->ranks(beat.rank)) {
    OnGone(had & ~leadership_->ranks(beat.rank) & shape_.RanksOf(beat.rank), "has died");
  }
  if (leadership_->leader() != known_leader_) SendBeats();
}

void SiteRelay::Impl::OnOver(const SiteMessage& message) {
  if (message.leader != leadership_->leader() || leadership_->leads() || !over_.IsInfinite()) return;
  end_ = message.status();
  over_ = Now();
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
void SiteRelay::OnRank(uint8_t node, uint8_t rank, bool here) { impl_->OnRank(node, rank, here); }
ClientStats SiteRelay::stats() const { return impl_->stats(); }
std::shared_ptr<Client> SiteRelay::client() const { return impl_->client(); }
bool SiteRelay::follows() const { return impl_->follows(); }
Duration SiteRelay::silence() const { return impl_->silence(); }

}  // namespace longhaul::site
