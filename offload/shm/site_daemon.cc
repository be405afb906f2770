#include "offload/shm/site_daemon.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

namespace longhaul::offload {
namespace {

// What an event is about: a part of a guest (whose number is above them), or the daemon's own (guest 0).
constexpr uint32_t kControlPart = 0;
constexpr uint32_t kProcessPart = 1;
constexpr uint32_t kWakeUpPart = 2;
constexpr uint32_t kParts = 4;
constexpr uint64_t kListener = 0;
constexpr uint64_t kWake = 1;
constexpr uint64_t kLink = 2;

// Guests that have not said which rank they are; beyond it the oldest goes. A rank says so at once.
constexpr size_t kMostStrangers = 64;
// Reductions of a turn: other ranks' requests, and deaths, are looked at every 0.1 ms or so.
constexpr uint64_t kTurnBytes = uint64_t{1} << 20;
// How often events (deaths, newcomers, calls) are looked at while there is work: a tenth of what a notice of
// a death may take, and a thousandth of the time.
constexpr Duration kEventsEvery = std::chrono::milliseconds(1);
constexpr int kEvents = 64;
// Nothing needs a look before that; a bound keeps the times that the kernel sees small.
constexpr Duration kMostSleep = std::chrono::seconds(1);
// Deadlines and retransmissions are a ms or longer; a look costs a walk over those of the next 65 us.
constexpr Duration kTimersEvery = std::chrono::microseconds(50);

Instant Clock() {
  return Instant::FromNanoseconds(std::chrono::steady_clock::now().time_since_epoch().count());
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// In nanoseconds, since a late node is waited for as short as 0.1 ms; in whole ms before Linux 5.11.
int Wait(int epoll, std::span<epoll_event> events, Duration most) {
  const auto size = static_cast<int>(events.size());
  const timespec time{most.count() / 1'000'000'000, most.count() % 1'000'000'000};
  const int count = epoll_pwait2(epoll, events.data(), size, &time, nullptr);
  if (count >= 0 || errno != ENOSYS) return count;
  return epoll_wait(epoll, events.data(), size, static_cast<int>((most.count() + 999'999) / 1'000'000));
}

// The process at the other end, whatever holds its socket; none where the system cannot say.
FileDescriptor ProcessOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return {};
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

std::string NameOf(const RankSession& session) {
  return "rank " + std::to_string(session.rank()) + " of node " + std::to_string(session.node());
}

}  // namespace

Result<std::unique_ptr<SiteDaemon>> SiteDaemon::Start(const DaemonOptions& options) {
  if (Status status = SiteEngines::Validate(options.site, options.link.get()); !status.ok()) return status;
  std::optional<SocketFile> socket;
  if (options.link == nullptr || options.link->node() < options.site.nodes) {
    auto listening = SocketFile::Listen(options.path);
    if (!listening.ok()) return listening.status();
    socket.emplace(std::move(*listening));
  }
  std::unique_ptr<SiteDaemon> daemon(new SiteDaemon(options, std::move(socket)));
  if (Status status = daemon->Open(); !status.ok()) return status;
  return daemon;
}

SiteDaemon::SiteDaemon(const DaemonOptions& options, std::optional<SocketFile> socket)
    : options_(options), socket_(std::move(socket)), engines_(options.site, options.link.get()) {}

SiteDaemon::~SiteDaemon() {
  while (!guests_.empty()) End(guests_.begin()->first, "the daemon ends");
}

Status SiteDaemon::Open() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  wake_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const bool open = (!socket_ || Watch(socket_->fd(), 0, kListener)) && Watch(wake_event_.get(), 0, kWake) &&
                    (!options_.link || Watch(options_.link->fd(), 0, kLink));
  return open ? Status::Ok() : Status(StatusCode::kInternal, "offload: no descriptors to wait with");
}

bool SiteDaemon::Watch(int fd, GuestId guest, uint32_t part) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = guest * kParts + part;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void SiteDaemon::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_event_.get(), &one, sizeof one);
}

void SiteDaemon::Stop() {
  stop_ = true;
  Wake();
}

Status SiteDaemon::Ask(const std::function<void()>& question, Duration limit) {
  if (stop_) return Status(StatusCode::kFailedPrecondition, "the daemon stops");
  std::unique_lock lock(mutex_);
  question_ = &question;
  Wake();
  const bool answered = answered_.wait_for(lock, limit, [this] { return question_ == nullptr; });
  question_ = nullptr;
  if (answered) return {};
  return stop_ ? Status(StatusCode::kFailedPrecondition, "the daemon stops")
               : Status(StatusCode::kDeadlineExceeded, "the daemon's loop does not answer");
}

// Something is asked, or this is the end.
void SiteDaemon::AnswerQuestion() {
  uint64_t times = 0;
  (void)!read(wake_event_.get(), &times, sizeof times);
  const std::lock_guard lock(mutex_);
  if (question_ == nullptr) return;
  (*question_)();
  question_ = nullptr;
  answered_.notify_all();
}

void SiteDaemon::Run() {
  Instant busy = Clock(), looked = busy;
  while (!stop_) {
    const Instant now = Clock();
    if (Turn(now)) busy = now;
    if (now - looked >= kEventsEvery) {
      looked = now;
      HandleEvents(Duration(0));
    }
    if (more_ || now - busy < options_.spin) {
      Pause();
      continue;
    }
    Sleep(now);
    busy = looked = Clock();
  }
}

bool SiteDaemon::Turn(Instant now) {
  const bool arrived = engines_.Fetch();
  bool moved = arrived;
  for (const Rank& rank : ranks_) moved |= rank.session->TakeRequests(now);
  if (arrived) engines_.Deliver(now);
  if (now - timers_looked_ >= kTimersEvery) {
    timers_looked_ = now;
    moved |= engines_.HandleTimeouts(now);
    if (options_.link) {
      if (const std::string warning = options_.link->TakeWarning(); !warning.empty()) Log(warning);
    }
  }
  moved |= more_;
  if (moved || engines_.IsBlocked()) more_ = engines_.Work(now, kTurnBytes);
  bool broken = false;
  for (const Rank& rank : ranks_) {
    if (rank.session->GiveCompletions()) {
      moved = true;
      if (rank.session->TakeNotification()) Notify(*rank.guest);
    }
    broken |= !rank.session->broken().empty();
  }
  if (broken) EndBroken();
  return moved || broken;
}

void SiteDaemon::EndBroken() {
  for (size_t i = ranks_.size(); i-- > 0;) {
    const Rank rank = ranks_[i];
    if (!rank.session->broken().empty()) End(rank.id, std::string(rank.session->broken()));
  }
}

void SiteDaemon::Sleep(Instant now) {
  bool awake = false;
  for (const Rank& rank : ranks_) rank.session->SetAsleep(true);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Rank& rank : ranks_) awake |= rank.session->HasRequests();
  const Instant next = engines_.NextTimeout();
  Duration most = kMostSleep;
  if (!next.IsInfinite()) most = std::clamp(next - now, Duration(0), most);
  if (engines_.IsBlocked()) most = std::min<Duration>(most, std::chrono::milliseconds(1));
  if (!accepting_) most = std::min<Duration>(most, std::chrono::milliseconds(100));
  HandleEvents(awake ? Duration(0) : most);
  if (!accepting_) PauseAccepting(false);
  for (const Rank& rank : ranks_) rank.session->SetAsleep(false);
  timers_looked_ = Instant();
}

void SiteDaemon::HandleEvents(Duration most) {
  std::array<epoll_event, kEvents> events;
  const int count = Wait(epoll_.get(), events, most);
  for (int i = 0; i < count; ++i) HandleEvent(events[i].data.u64);
}

void SiteDaemon::HandleEvent(uint64_t what) {
  const GuestId id = what / kParts;
  if (what == kListener) return Accept();
  if (what == kWake) return AnswerQuestion();
  if (id == 0 || !guests_.contains(id)) return;  // gone by an event before
  if (what % kParts == kControlPart) return OnControl(id);
  if (what % kParts == kWakeUpPart) return OnWakeUp(id);
  End(id, "its process has ended");
}

void SiteDaemon::Accept() {
  // A few at a time: a crowd of newcomers does not keep ranks waiting.
  for (int i = 0; i < 16; ++i) {
    FileDescriptor control(accept4(socket_->fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (control.valid()) {
      Admit(std::move(control));
      continue;
    }
    const bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
    if (full && strangers() > 0) {
      EndOldestStranger();
    } else if (full) {
      PauseAccepting(true);
    }
    return;
  }
}

void SiteDaemon::PauseAccepting(bool pause) {
  epoll_event event{};
  if (!pause) event.events = EPOLLIN;
  event.data.u64 = kListener;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_->fd(), &event);
  accepting_ = !pause;
}

void SiteDaemon::Admit(FileDescriptor control) {
  if (strangers() >= kMostStrangers) EndOldestStranger();
  const GuestId id = next_++;
  if (!Watch(control.get(), id, kControlPart)) return;
  guests_[id].control = std::move(control);
  OnControl(id);  // most have said who they are already
}

void SiteDaemon::OnControl(GuestId id) {
  Guest& guest = guests_.at(id);
  ControlRequest request;
  // Without room for descriptors: the kernel drops those that come along.
  const ssize_t bytes = recv(guest.control.get(), &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (bytes <= 0) return End(id, "it has closed");
  if (bytes != static_cast<ssize_t>(sizeof request) || request.magic != kControlMagic) {
    return End(id, "a message that no library writes");
  }
  if (!Answer(id, guest, request)) End(id, "it has left");
}

void SiteDaemon::OnWakeUp(GuestId id) {
  Guest& guest = guests_.at(id);
  std::array<char, 256> bytes;
  const ssize_t count = recv(guest.wake_up.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    return End(id, "it has closed");
  }
  if (guest.session->TakeNotification()) Notify(guest);
}

void SiteDaemon::Notify(Guest& guest) {
  // A full socket is readable already.
  (void)!send(guest.wake_up.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool SiteDaemon::Answer(GuestId id, Guest& guest, const ControlRequest& request) {
  if (!guest.session) return request.kind == ControlKind::kHello && Hello(id, guest, request);
  ControlReply reply;
  switch (request.kind) {
    case ControlKind::kAllocate:
      return Allocate(guest, request);
    case ControlKind::kDeregister:
      SetStatus(guest.session->Deregister(request.key), &reply);
      break;
    case ControlKind::kStats:
      SetStats(engines_.engine(guest.session->node()).stats(), &reply);
      break;
    case ControlKind::kClose:
      Log(NameOf(*guest.session) + " leaves");
      EndSession(id, guest);
      (void)SendReply(guest.control.get(), reply, {});
      return false;
    default:
      return false;
  }
  return SendReply(guest.control.get(), reply, {});
}

Status SiteDaemon::CheckHello(const ControlRequest& request) const {
  const SiteOptions& site = options_.site;
  if (request.version != kControlVersion) {
    return Status(StatusCode::kVersionMismatch, "offload: the daemon has another version");
  }
  if (request.node >= site.nodes || request.rank >= site.ranks_per_node) {
    return Status(StatusCode::kInvalidArgument, "offload: the site has no such node or rank");
  }
  if (!engines_.Has(request.node)) {
    return Status(StatusCode::kInvalidArgument,
                  "offload: that node is on another machine; the daemon's is node " +
                      std::to_string(options_.link->node()));
  }
  const SiteOptions theirs = Decode(request.site);
  if (theirs != site && theirs != SiteOptions()) {
    return Status(StatusCode::kSettingsMismatch, "offload: the site is open with other options");
  }
  for (const Rank& rank : ranks_) {
    if (rank.session->node() == request.node && rank.session->rank() == request.rank) {
      return Status(StatusCode::kAlreadyExists, "offload: the rank's device is open already");
    }
  }
  return Status::Ok();
}

bool SiteDaemon::Hello(GuestId id, Guest& guest, const ControlRequest& what) {
  ControlRequest request = what;
  if (request.node == DeviceOptions::kDaemonsNode) request.node = FirstNode();
  ControlReply reply;
  reply.key = request.node;
  Status status = CheckHello(request);
  std::array<int, 2> ends{-1, -1};
  if (status.ok() && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    status = Status(StatusCode::kResourceExhausted, "offload: the daemon has no descriptors left");
  }
  FileDescriptor here(ends[0]), theirs(ends[1]);
  std::unique_ptr<RankSession> session;
  if (status.ok()) {
    auto opened =
        RankSession::Open(&engines_, &shared_, request.node, request.rank, options_.rank_memory_bytes);
    status = opened.status();
    if (opened.ok()) session = std::move(*opened);
  }
  if (!status.ok()) {
    SetStatus(status, &reply);
    (void)SendReply(guest.control.get(), reply, {});
    return false;
  }
  reply.ring = session->memory().ring();
  reply.bytes = session->memory().memory().size();
  reply.site = Encode(options_.site);
  guest.process = ProcessOf(guest.control.get());
  guest.wake_up = std::move(here);
  if (guest.process.valid() && !Watch(guest.process.get(), id, kProcessPart)) return false;
  if (!Watch(guest.wake_up.get(), id, kWakeUpPart)) return false;
  const FileDescriptor words = session->memory().memory().PassOn(false);
  if (!SendReply(guest.control.get(), reply, {words.get(), theirs.get()})) return false;
  guest.session = std::move(session);
  ranks_.push_back({id, &guest, guest.session.get()});
  Log(NameOf(*guest.session) + " joins");
  if (options_.on_rank) options_.on_rank(guest.session->node(), guest.session->rank(), true);
  return true;
}

bool SiteDaemon::Allocate(Guest& guest, const ControlRequest& request) {
  ControlReply reply;
  auto memory = guest.session->Allocate(request.bytes, TextOf(request.name));
  if (!memory.ok()) {
    SetStatus(memory.status(), &reply);
    return SendReply(guest.control.get(), reply, {});
  }
  reply.key = memory->key;
  reply.bytes = memory->bytes;
  return SendReply(guest.control.get(), reply, {memory->fd.get()});
}

void SiteDaemon::End(GuestId id, std::string_view why) {
  Guest& guest = guests_.at(id);
  if (guest.session) {
    Log(NameOf(*guest.session) + " ends: " + std::string(why));
    EndSession(id, guest);
  }
  guests_.erase(id);
}

// Before its sockets: a process that sees them closed finds its memory left alone. Requests that were posted
// before this rank left come first: a message that begins after that waits for the rank to come back.
void SiteDaemon::EndSession(GuestId id, Guest& guest) {
  const Instant now = Clock();
  for (const Rank& rank : ranks_) (void)rank.session->TakeRequests(now);
  std::erase_if(ranks_, [id](const Rank& rank) { return rank.id == id; });
  if (options_.on_rank) options_.on_rank(guest.session->node(), guest.session->rank(), false);
  guest.session.reset();
  more_ = true;  // the next turn completes the others' requests
}

void SiteDaemon::EndOldestStranger() {
  GuestId oldest = UINT64_MAX;
  for (const auto& [id, guest] : guests_) {
    if (!guest.session) oldest = std::min(oldest, id);
  }
  if (oldest != UINT64_MAX) End(oldest, "");
}

void SiteDaemon::Log(const std::string& line) {
  if (!options_.log) return;
  if (!lines_.Take(Clock())) {
    ++lines_left_out_;
    return;
  }
  if (lines_left_out_ > 0) options_.log(std::to_string(lines_left_out_) + " lines are left out");
  lines_left_out_ = 0;
  options_.log(line);
}

}  // namespace longhaul::offload
