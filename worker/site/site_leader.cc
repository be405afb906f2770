#include "worker/site/site_leader.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/units_text.h"
#include "worker/client/client_impl.h"
#include "worker/site/site_clock.h"

namespace longhaul::site {
namespace {

std::string NameOf(uint8_t rank) { return "rank " + std::to_string(rank) + " of the site"; }
std::string MemoryOf(uint64_t leader) { return "longhaul-site-" + std::to_string(leader); }

}  // namespace

SiteLeader::SiteLeader(const Options& options, Mailbox* mailbox, std::function<void()> wake)
    : options_(options),
      mailbox_(*mailbox),
      aside_(std::move(wake)),
      collectives_(mailbox, options.shape, options.leader, options.connect.idle_timeout),
      desk_(static_cast<uint8_t>(options.shape.ranks()),
            [this](uint8_t rank, const SiteMessage& message) { Send(rank, message); }),
      tensors_(mailbox, &desk_, &collectives_, &aside_, MemoryOf(options.leader),
               2 * options.connect.idle_timeout,
               [this](uint8_t rank, const Status& why) { Remove(rank, why, false); }),
      began_(Now()) {
  if (options.expected) desk_.Expect(*options.expected);
  if (options.any_left) desk_.SetLeft();
}

SiteLeader::~SiteLeader() {
  // Either ends what aside waits for. What is said in the name of a member that has a successor ends the job
  // that this one goes on with, until the server has it in its place.
  if (client_ && retired_) {
    internal::ClientImpl::Of(*client_).Vanish();
  } else if (client_ && !leaving_) {
    (void)client_->Leave(
        {StatusCode::kCancelled, failure_.ok() ? "the site's relay ends" : failure_.message()});
  }
  collectives_.EndAll();  // they use memory that goes back
}

void SiteLeader::Send(uint8_t rank, SiteMessage message) {
  if (retired_) return;
  message.leader = options_.leader;
  (void)mailbox_.Send(options_.shape.PlaceOf(rank), message);
}

void SiteLeader::Connect() {
  connecting_ = true;
  const bool asked = aside_.Run([this] {
    auto client = std::make_shared<Result<Client>>(Client::Connect(options_.connect));
    aside_.Done([this, client] { OnConnected(std::move(*client)); });
  });
  if (!asked) Fail({StatusCode::kInternal, "no thread for the site's connection"});
}

void SiteLeader::OnConnected(Result<Client> client) {
  connecting_ = false;
  if (!client.ok()) return Fail(client.status());
  auto connected = std::make_shared<Client>(std::move(*client));
  {
    const std::lock_guard lock(mutex_);
    client_ = connected;
  }
  if (retired_ || !failure_.ok() || IsAnotherJob()) return;
  tensors_.SetClient(connected, options_.grace > Duration(0));
  Log(LogLevel::kInfo, "the site is member " + std::to_string(connected->rank()) + " of " +
                           std::to_string(connected->world_size()) + ", with " + std::to_string(ranks()) +
                           " ranks");
  for (uint8_t rank = 0; rank < ranks(); ++rank) {
    if ((desk_.here() >> rank & 1) != 0) Welcome(rank);
  }
  tensors_.AdvanceAll();
  AdvanceBarriers();
  LeaveIfEmpty();
}

// Its values are not those that the ranks' gradients are for.
bool SiteLeader::IsAnotherJob() {
  const uint64_t job = client_ ? internal::ClientImpl::Of(*client_).job() : 0;
  if (job == 0 || job_ == 0 || job == job_) return false;
  Fail({StatusCode::kAborted, "the job that the site was in is over: the server at " +
                                  options_.connect.servers.front() + " has another one"});
  return true;
}

Duration SiteLeader::idle_timeout() const {
  const Duration own = options_.connect.idle_timeout;
  return client_ ? std::min(own, client_->settings().idle_timeout) : own;
}

ClientStats SiteLeader::stats() const {
  const std::shared_ptr<Client> joined = client();
  return joined ? joined->stats() : ClientStats();
}

std::shared_ptr<Client> SiteLeader::client() const {
  const std::lock_guard lock(mutex_);
  return client_;
}

void SiteLeader::Look(Instant now) {
  tensors_.Retry();
  const Duration patience = options_.connect.idle_timeout;
  const uint64_t silent = desk_.SilentSince(now - patience) |
                          (now - began_ > patience && options_.expected ? desk_.missing_at_start() : 0);
  for (uint8_t rank = 0; rank < ranks(); ++rank) {
    if ((silent >> rank & 1) != 0) OnGone(rank, "was silent for " + SecondsText(patience));
  }
  if (!client_ || leaving_ || !failure_.ok()) return;
  const Status status = client_->status();
  if (status.ok()) return;
  failing_ = std::min(failing_, now);
  if (now - failing_ >= options_.grace) Fail(status);
}

void SiteLeader::Fail(const Status& why) {
  if (!failure_.ok() || retired_) return;
  failure_ = why;
  desk_.FailAll(why);
  for (uint8_t rank = 0; rank < ranks(); ++rank) tensors_.Forget(rank, std::nullopt);
  barriers_.clear();
  over_ = Now();
}

bool SiteLeader::Retire() {
  retired_ = true;
  return !connecting_;
}

// --- Ranks ---

void SiteLeader::OnGone(uint8_t rank, const std::string& how) {
  const Status why(StatusCode::kPeerDead, NameOf(rank) + " " + how);
  if ((desk_.here() >> rank & 1) != 0) return Remove(rank, why, false);
  if (!options_.expected || !desk_.ExpectNoMore(rank)) return;
  Log(LogLevel::kWarning, why.message() + ": it is not waited for");
  tensors_.AdvanceAll();
  AdvanceBarriers();
}

void SiteLeader::ForgetAllOf(uint8_t rank) {
  tensors_.Forget(rank, std::nullopt);
  for (auto& [name, parts] : barriers_) parts.erase(rank);
}

// told: the rank has said so itself.
void SiteLeader::Remove(uint8_t rank, const Status& why, bool told) {
  desk_.Remove(rank, told ? Status() : why);
  // The others go on without one that has died: with the last one the site's part ends unfinished.
  if (!why.ok() && end_.ok() && (told || desk_.here() == 0)) end_ = why;
  const int left = std::popcount(desk_.here());
  if (!why.ok())
    Log(LogLevel::kWarning, why.message() + ": the site goes on with " + std::to_string(left) + " ranks");
  ForgetAllOf(rank);
  collectives_.Cancel(uint64_t{1} << rank);
  tensors_.AdvanceAll();
  AdvanceBarriers();
  LeaveIfEmpty();
}

void SiteLeader::OnMessage(const SiteMessage& message) {
  if (retired_) return;
  if (message.kind == SiteKind::kHello) return OnHello(message);
  if (message.leader != options_.leader || !desk_.IsCurrent(message, Now())) return;
  switch (message.kind) {
    case SiteKind::kDeclare:
    case SiteKind::kStep:
    case SiteKind::kPull:
    case SiteKind::kScores:
      if (desk_.Take(message)) tensors_.Take(message);
      return;
    case SiteKind::kBarrier:
      if (desk_.Take(message)) TakeBarrier(message);
      return;
    case SiteKind::kLeave:
      return TakeLeave(message);
    case SiteKind::kRefused:
      return TakeRefusal(message);
    case SiteKind::kTaken:
      if (!desk_.Close(message.rank, message.seq)) return;
      tensors_.Forget(message.rank, message.seq);
      for (auto& [name, parts] : barriers_) {
        std::erase_if(parts, [&message](const auto& p) {
          return p.first == message.rank && p.second.seq == message.seq;
        });
      }
      return;
    default:
      return;  // what only relays say
  }
}

void SiteLeader::OnHello(const SiteMessage& message) {
  if (message.rank >= ranks()) return;
  if (desk_.Hello(message.rank, message.session, Now())) {
    ForgetAllOf(message.rank);
    passed_[message.rank] = {message.text, message.mid};
    if (message.value != 0) job_ = message.value;
    if (IsAnotherJob()) return;
    tensors_.AdvanceAll();
    AdvanceBarriers();
  }
  if (!failure_.ok()) desk_.FailAll(failure_);
  if (!desk_.IsCurrent(message, Now())) return;
  if (client_) return Welcome(message.rank);
  SiteMessage pending;
  pending.kind = SiteKind::kPending;
  desk_.Tell(message.rank, pending);
}

void SiteLeader::Welcome(uint8_t rank) {
  SiteMessage welcome;
  welcome.kind = SiteKind::kWelcome;
  welcome.tensor = rank;
  welcome.mid = ranks();
  welcome.value = uint64_t{client_->rank()} << 32 | client_->world_size();
  welcome.ranks = internal::ClientImpl::Of(*client_).job();
  welcome.body = EncodeJob(client_->settings());
  desk_.Tell(rank, std::move(welcome));
}

void SiteLeader::TakeLeave(const SiteMessage& message) {
  desk_.SetLeft();
  Status why = message.status();
  if (!why.ok()) why = {why.code(), NameOf(message.rank) + " leaves: " + why.message()};
  Remove(message.rank, why, true);
  (void)desk_.IsCurrent(message, Now());  // answers it
}

void SiteLeader::TakeRefusal(const SiteMessage& message) {
  const auto why = static_cast<offload::WorkStatus>(message.value);
  if (message.value > UINT8_MAX || !collectives_.OnRefused(message.rank, message.mid, why)) return;
  Log(LogLevel::kWarning, NameOf(message.rank) + ": its device refuses a collective: " +
                              std::string(offload::WorkStatusName(why)));
}

void SiteLeader::LeaveIfEmpty() {
  if (desk_.here() != 0 || !desk_.any_left() || leaving_ || !client_ || !failure_.ok()) return;
  if (options_.expected && desk_.missing_at_start() != 0) return;
  leaving_ = true;
  const bool asked = aside_.Run([this, client = client_, why = end_] {
    auto left = std::make_shared<Status>(client->Leave(why));
    aside_.Done([this, left] {
      if (!left->ok() && end_.ok()) end_ = *left;
      over_ = Now();
    });
  });
  if (!asked) over_ = Now();
}

// --- Barriers ---

void SiteLeader::TakeBarrier(const SiteMessage& message) {
  barriers_[message.text][message.rank] = {message.seq, message.value != 0, message.mid};
  AdvanceBarriers();
}

// A barrier that one rank has passed is over for those that were at it under an earlier leader, too.
void SiteLeader::EndPassed(const std::string& name, std::map<uint8_t, BarrierPart>& parts) {
  uint32_t times = 0;
  for (const auto& [rank, last] : passed_) times = std::max(times, last.name == name ? last.times : 0);
  std::erase_if(parts, [this, times](const auto& part) {
    const bool over = part.second.again && part.second.passed < times;
    if (over) desk_.End(part.first, part.second.seq, Status::Ok());
    return over;
  });
}

void SiteLeader::AdvanceBarriers() {
  for (auto& [name, parts] : barriers_) EndPassed(name, parts);
  std::erase_if(barriers_, [](const auto& barrier) { return barrier.second.empty(); });
  for (auto at = barriers_.begin(); at != barriers_.end();) {
    uint64_t in = 0;
    for (const auto& [rank, part] : at->second) in |= uint64_t{1} << rank;
    const uint64_t missing = desk_.missing_at_start() | (desk_.here() & ~in);
    for (const auto& [rank, part] : at->second) desk_.SetMissing(rank, part.seq, missing);
    if (missing != 0 || !client_) {
      ++at;
      continue;
    }
    const auto end = [this, name = at->first, parts = at->second](const Status& outcome) {
      for (const auto& [rank, part] : parts) {
        desk_.End(rank, part.seq, outcome);
        if (outcome.ok()) passed_[rank] = {name, part.passed + 1};
      }
      AdvanceBarriers();
    };
    const bool asked = aside_.Run([this, client = client_, name = at->first, end] {
      const Status outcome = client->Barrier(name);
      aside_.Done([this, end, outcome] {
        if (!tensors_.MayGoOn(outcome)) end(outcome);
      });
    });
    if (!asked) end({StatusCode::kResourceExhausted, "the site waits at too many barriers"});
    at = barriers_.erase(at);
  }
}

}  // namespace longhaul::site
