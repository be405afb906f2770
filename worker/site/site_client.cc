#include "worker/site/site_client.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "base/units_text.h"
#include "codec/policy/summable.h"
#include "worker/client/arguments.h"
#include "worker/site/client_tensors.h"
#include "worker/site/mailbox.h"
#include "worker/site/site_clock.h"
#include "worker/site/site_requests.h"

namespace longhaul::internal {
namespace {

using offload::Opcode;
using site::Arena;
using site::kNoTensor;
using site::Mailbox;
using site::Request;
using site::SiteKind;
using site::SiteMessage;

constexpr Duration kLeastWait = std::chrono::milliseconds(1);
// As of a client with a connection of its own (client.h).
constexpr size_t kMostPending = 4096;

using TensorState = site::ClientTensors::State;

class SiteClient final : public ClientImpl {
 public:
  static Result<std::shared_ptr<ClientImpl>> Connect(const ConnectOptions& options);
  explicit SiteClient(const ConnectOptions& options) : ClientImpl(options.log), options_(options) {}
  ~SiteClient() override;

  Result<Tensor> Declare(const std::string& name, const TensorOptions& options) override;
  Operation Push(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options) override;
  Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) override;
  Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                     const PushOptions& options) override;
  Status SetScores(const Tensor& tensor, std::span<const float> scores) override;
  Result<TensorClock> Clock(const Tensor& tensor) override;
  Status Barrier(const std::string& name) override;
  Status Leave(const Status& why) override;
  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return world_size_; }
  JobSpec settings() const override { return settings_; }
  Membership membership() override { return {}; }
  uint64_t job() const override { return job_; }
  Status status() override;
  ClientStats stats() override;
  std::optional<ClientStats> Ask() override;

 private:
  // --- Any thread ---
  Status Open();
  Status WaitUntilWelcome();
  Operation Launch(Request request);
  Operation Contribute(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                       const PushOptions& options);
  void Post(std::function<void()> command);

  // --- Its own ---
  void EndOnOwnThread() override;
  void Run();
  void RunCommands();
  void RunEnds();
  void OnTimer(Instant now);
  void SendHello(Instant now);
  void OnMessage(const SiteMessage& message);
  void OnWelcome(const SiteMessage& message);
  void TurnTo(uint64_t leader);
  void DeclareAnew();
  void GoOn(TensorState& tensor);
  void OnAnswer(const SiteMessage& message, Request& request);
  void OnCompletion(const offload::Completion& completion);
  void Add(Request request);
  void Ask(Request request);
  Status Fill(Request& request);
  Status TakeDeclared(const SiteMessage& message, uint32_t tensor, uint64_t count);
  void Learn(const Request& request);
  void Upload(const SiteMessage& message, Request& request);
  void Join(const SiteMessage& begun, Request& request, const site::SiteRequests::Collective& what) {
    requests_->Join(request, begun, what, options_.idle_timeout);
  }
  void End(Request& request, const Status& outcome);
  void StartNext(TensorState& tensor);
  void Fail(const Status& why);
  void EndAll(const Status& why);
  TensorState* TensorOf(uint32_t tensor) { return tensors_.Find(tensor); }

  struct Ended {
    std::shared_ptr<Completion> promise;
    Status outcome;
    OperationStats stats;
  };

  const ConnectOptions options_;
  std::unique_ptr<Mailbox> mailbox_;
  std::thread thread_;

  // Its own thread's.
  std::optional<site::SiteRequests> requests_;
  site::ClientTensors tensors_;
  std::string passed_;   // the last barrier
  uint32_t passes_ = 0;  // of all barriers
  std::vector<Ended> ends_;
  Instant heard_;
  Instant hello_;
  ClientStats counts_;
  bool stop_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> commands_;
  bool welcomed_ = false;
  bool leaving_ = false;
  bool over_ = false;  // the thread takes no commands any more
  Status failure_;
  ClientStats stats_;
  uint32_t rank_ = 0;  // these are fixed once Connect has returned
  uint32_t world_size_ = 1;
  JobSpec settings_;
  uint64_t job_ = 0;
};

Status CheckCount(const Tensor& tensor, size_t elements) {
  if (elements == tensor.count()) return {};
  return {StatusCode::kInvalidArgument, "tensor " + tensor.name() + " has " + std::to_string(tensor.count()) +
                                            " elements, not " + std::to_string(elements)};
}

Status CheckDeclaration(const std::string& name, const TensorOptions& options, uint64_t max_message_bytes) {
  if (Status s = worker::CheckInitial(options.initial); !s.ok()) return s;
  if (name.empty() || name.size() > site::kMaxTextBytes) {
    return Status(StatusCode::kInvalidArgument, "a tensor's name has 1..256 bytes");
  }
  if (options.count == 0 || (!options.initial.empty() && options.initial.size() != options.count)) {
    return Status(StatusCode::kInvalidArgument,
                  "tensor " + name + ": count is 0, or not that of the initial values");
  }
  if (options.count >= max_message_bytes / sizeof(float)) {
    return Status(StatusCode::kInvalidArgument,
                  "tensor " + name + " is longer than a message of the site (--max-message-bytes)");
  }
  return {};
}

// Checked before the others' gradients are added to it.
Status FillGradient(TensorState& tensor, const Request& request, uint32_t world_size) {
  const float largest = codec::LargestGradient(world_size, request.weight);
  const std::span<float> out = tensor.send.floats(tensor.count + 1);
  bool bad = false;
  for (size_t i = 0; i < request.values.size(); ++i) {
    bad |= !(std::fabs(request.values[i]) <= largest);
    out[i] = request.values[i] * request.weight;
  }
  out[tensor.count] = request.weight;
  if (!bad) return {};
  return {StatusCode::kInvalidArgument,
          "the gradient has a value that is not finite, or whose magnitude is above what " +
              std::to_string(world_size) + " workers of weight " + std::to_string(request.weight) +
              " can sum"};
}

Status NoRelay(const std::string& where, Duration silence, bool welcomed) {
  const std::string limit = SecondsText(silence);
  if (welcomed) {
    return {StatusCode::kPeerDead, "the relay of the site at " + where + " was silent for " + limit};
  }
  return {StatusCode::kUnavailable, "no relay answers at " + where + " within " + limit +
                                        "; does its longhaul-offload run with --server?"};
}

// --- Life ---

Status NoRank() { return {StatusCode::kResourceExhausted, "all ranks of the site are taken"}; }

// The rank that was asked for, or the first that is free; the last one is the relay's.
Result<offload::Device> OpenOnNode(const ConnectOptions& options, uint8_t node, uint8_t* rank) {
  const uint8_t first = options.site_rank.value_or(0);
  const uint8_t last = options.site_rank.value_or(63);
  for (uint8_t r = first; r <= last; ++r) {
    auto device = offload::Device::Open(options.offload, {.node = node, .rank = r, .site = {}});
    *rank = r;
    const bool taken = device.status().code() == StatusCode::kAlreadyExists;
    if (device.ok() && r + 1 < device->site().ranks_per_node) return device;
    if (device.ok()) return NoRank();
    if (taken && !options.site_rank) continue;
    const bool beyond = r > first && device.status().code() == StatusCode::kInvalidArgument;
    return beyond ? NoRank() : device.status();
  }
  return NoRank();
}

// A daemon that has several nodes has free ranks on the next one, perhaps.
Result<offload::Device> OpenDevice(const ConnectOptions& options, uint8_t* rank) {
  auto device = OpenOnNode(options, offload::DeviceOptions::kDaemonsNode, rank);
  for (uint8_t node = 1; node < 16 && device.status().code() == StatusCode::kResourceExhausted; ++node) {
    auto next = OpenOnNode(options, node, rank);
    if (next.status().code() == StatusCode::kInvalidArgument) break;
    device = std::move(next);
  }
  return device;
}

Result<std::shared_ptr<ClientImpl>> SiteClient::Connect(const ConnectOptions& options) {
  auto client = std::make_shared<SiteClient>(options);
  if (Status s = client->Open(); !s.ok()) return s;
  if (Status s = client->WaitUntilWelcome(); !s.ok()) return s;
  return std::shared_ptr<ClientImpl>(std::move(client));
}

Status SiteClient::Open() {
  uint8_t rank = 0;
  auto device = OpenDevice(options_, &rank);
  if (!device.ok()) return device.status();
  const auto shape = site::SiteShape::Of(device->site());
  const site::Place own{device->node(), rank};
  auto mailbox = Mailbox::Open(std::move(*device));
  if (!mailbox.ok()) return mailbox.status();
  mailbox_ = std::move(*mailbox);
  requests_.emplace(mailbox_.get(), shape, own, site::NewSession());
  heard_ = site::Now();
  try {
    thread_ = std::thread([this] {
      Run();
      const std::shared_ptr<ClientImpl> last = std::move(own_);
    });
  } catch (const std::system_error& error) {
    return {StatusCode::kInternal, std::string("no thread for the client: ") + error.what()};
  }
  thread_id_ = thread_.get_id();
  return {};
}

Status SiteClient::WaitUntilWelcome() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return welcomed_ || !failure_.ok(); });  // by connect_timeout, see OnTimer
  return failure_;
}

SiteClient::~SiteClient() {
  EndWith(Destroyed());
  if (OnOwnThread()) {
    thread_.detach();  // this is its last deed
  } else if (thread_.joinable()) {
    Post([this] { EndOnOwnThread(); });
    thread_.join();
  }
}

void SiteClient::EndOnOwnThread() {
  Fail(Destroyed());
  stop_ = true;
}

void SiteClient::Run() {
  while (!stop_) {
    RunCommands();
    const auto none = [] {};
    const bool alive = mailbox_->Poll(
        none, [this](const SiteMessage& message) { OnMessage(message); },
        [this](const offload::Completion& completion) { OnCompletion(completion); });
    if (!alive)
      Fail({StatusCode::kPeerDead, "the site's longhaul-offload at " + options_.offload + " has ended"});
    OnTimer(site::Now());
    RunEnds();
    if (stop_) break;
    const Duration wait = std::min(hello_, requests_->NextDue()) - site::Now();
    // What found no room is due: sends that leave wake up.
    mailbox_->Wait(alive ? std::max(wait, kLeastWait) : Request::kLongestRepeat);
  }
  RunEnds();
  mailbox_->device().Close();
  std::deque<std::function<void()>> rest;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    rest.swap(commands_);
  }
}

void SiteClient::Post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;  // and with it the promise in it
    commands_.push_back(std::move(command));
  }
  mailbox_->Wake();
}

void SiteClient::RunCommands() {
  std::deque<std::function<void()>> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    counts_.callbacks_threw = calls_->threw();
    stats_ = counts_;
  }
  for (auto& command : commands) {
    command();
    command = nullptr;
  }
}

// Callbacks run here, where nothing else is in progress: they may end the client.
void SiteClient::RunEnds() {
  while (!ends_.empty()) {
    std::vector<Ended> ends;
    ends.swap(ends_);
    {
      const std::lock_guard lock(mutex_);
      stats_ = counts_;
    }
    for (Ended& end : ends) {
      end.promise->End(end.outcome, end.stats);
      end.promise = nullptr;
    }
  }
}

// --- What the relay says ---

void SiteClient::OnMessage(const SiteMessage& message) {
  if (message.session != requests_->session()) return;  // of this rank's predecessor
  if (message.leader < requests_->leader()) return;     // of a relay that leads no more
  if (message.leader > requests_->leader()) TurnTo(message.leader);
  if (message.kind == SiteKind::kMoved) return;
  heard_ = site::Now();
  if (message.kind == SiteKind::kWelcome) return OnWelcome(message);
  if (message.kind == SiteKind::kFailed) return Fail(message.status());
  Request* const request = requests_->Find(message.seq);
  if (request == nullptr) return;
  requests_->OnAnswered(*request);
  if (message.kind == SiteKind::kClosed) {
    if (!request->ended) End(*request, {StatusCode::kAborted, "the site's relay has forgotten the request"});
    return requests_->Close(message.seq);
  }
  if (!request->ended) OnAnswer(message, *request);
}

void SiteClient::OnWelcome(const SiteMessage& message) {
  const auto job = site::DecodeJob(message.body);
  const auto member = static_cast<uint32_t>(message.value >> 32),
             members = static_cast<uint32_t>(message.value);
  if (!job) return;
  DeclareAnew();
  const std::lock_guard lock(mutex_);
  if (welcomed_) return;
  settings_ = *job;
  job_ = message.ranks;
  rank_ = member * message.mid + message.tensor;
  world_size_ = members * message.mid;
  welcomed_ = true;
  changed_.notify_all();
}

// Another relay leads: it learns all that is not over.
void SiteClient::TurnTo(uint64_t leader) {
  requests_->SetLeader(leader);
  heard_ = site::Now();
  hello_ = Instant();
  tensors_.TurnTo(leader);
}

// Without values: the server has them.
void SiteClient::DeclareAnew() {
  requests_->Resume();
  for (const uint32_t index : tensors_.TakeUndeclared()) {
    const TensorState& tensor = *tensors_.Find(index);
    Request request;
    request.message.kind = SiteKind::kDeclare;
    request.message.text = tensor.name;
    request.message.body = tensor.body;
    request.on_end = [this, index, count = tensor.count](const SiteMessage& message) {
      return TakeDeclared(message, index, count);
    };
    Ask(std::move(request));
  }
}

// A tensor that the leader has learned.
void SiteClient::GoOn(TensorState& tensor) {
  Request* const request = requests_->Find(tensor.active);
  if (request == nullptr || request->ended) return;
  request->held = false;
  request->message.tensor = tensor.remote;
  const bool step = request->message.kind == SiteKind::kStep;
  if (step && request->asked && tensor.rounds != site::ClientTensors::kNoRounds)
    request->message.ranks = tensor.rounds + 1;
  (void)requests_->Say(site::Now(), *request);
}

void SiteClient::OnAnswer(const SiteMessage& message, Request& request) {
  TensorState* const tensor = TensorOf(request.tensor);
  switch (message.kind) {
    case SiteKind::kPending:
      if (message.ranks != 0 && request.missing == 0) request.since = site::Now();
      request.missing = message.ranks;
      return;
    case SiteKind::kUpload:
      return Upload(message, request);
    case SiteKind::kGo:
      request.missing = 0;
      if (tensor == nullptr) return;
      return Join(
          message, request,
          {Opcode::kReduce, requests_->relay(), (tensor->count + 1) * sizeof(float), tensor->send.slice, {}});
    case SiteKind::kDeliver: {
      request.missing = 0;
      const auto stats = site::DecodeStats(message.body);
      if (tensor == nullptr || !stats) return;
      request.stats = *stats;
      return Join(
          message, request,
          {Opcode::kBroadcast, requests_->relay(), tensor->count * sizeof(float), {}, tensor->result.slice});
    }
    case SiteKind::kEnd: {
      if (const auto stats = site::DecodeStats(message.body)) request.stats = *stats;
      Status outcome = message.status();
      if (outcome.ok() && request.on_end) outcome = request.on_end(message);
      return End(request, outcome);
    }
    default:
      return;
  }
}

void SiteClient::Upload(const SiteMessage& message, Request& request) {
  TensorState* const tensor = TensorOf(request.tensor);
  const std::span<const float> values = request.scores.empty() ? request.values : request.scores;
  const Arena::Piece& piece = tensor != nullptr ? tensor->send : request.send;
  if (!request.IsNews(message.mid) || values.size_bytes() > piece.memory.size()) return;
  std::ranges::copy(values, piece.floats(values.size()).begin());
  Join(message, request,
       {Opcode::kBroadcast, requests_->own(), values.size_bytes(), piece.slice, piece.slice});
}

void SiteClient::OnCompletion(const offload::Completion& c) {
  Request* const request = requests_->OnCompletion(site::Now(), c);
  TensorState* const tensor = request == nullptr ? nullptr : TensorOf(request->tensor);
  if (c.opcode != Opcode::kBroadcast || tensor == nullptr || request->out.empty()) return;
  std::ranges::copy(tensor->result.floats(request->out.size()), request->out.begin());
  End(*request, Status::Ok());
}

// --- Requests ---

void SiteClient::Add(Request request) {
  ++counts_.operations_started;
  Status refusal = status();
  if (refusal.code() == StatusCode::kFailedPrecondition) refusal = {};  // that of Leave itself
  const uint64_t ended = counts_.operations_succeeded + counts_.operations_failed;
  if (refusal.ok() && counts_.operations_started - ended > kMostPending) {
    refusal = {StatusCode::kResourceExhausted, "4096 operations are pending"};
  }
  if (!refusal.ok()) {
    ++counts_.operations_failed;
    ends_.push_back({std::move(request.promise), refusal, {}});
    return;
  }
  TensorState* const tensor = TensorOf(request.tensor);
  if (tensor == nullptr) return Ask(std::move(request));
  tensor->waiting.push_back(std::move(request));
  if (tensor->active == 0) StartNext(*tensor);
}

// In the order of the calls.
void SiteClient::StartNext(TensorState& tensor) {
  tensor.active = 0;
  while (tensor.active == 0 && !tensor.waiting.empty()) {
    Request request = std::move(tensor.waiting.front());
    tensor.waiting.pop_front();
    Ask(std::move(request));
  }
}

void SiteClient::Ask(Request request) {
  request.stats.bytes =
      ByteCount(static_cast<int64_t>(request.values.size_bytes() + request.out.size_bytes()));
  TensorState* const tensor = TensorOf(request.tensor);
  if (request.message.kind == SiteKind::kBarrier) request.message.mid = passes_;
  const Status refusal = Fill(request);
  Request& asked = requests_->Add(std::move(request));
  const uint64_t seq = asked.message.seq;
  if (!refusal.ok()) {
    ++counts_.operations_failed;
    ends_.push_back({std::move(asked.promise), refusal, {}});
    return requests_->Close(seq);
  }
  if (tensor != nullptr) {
    tensor->active = seq;
    asked.message.tensor = tensor->remote;
    asked.held = tensor->remote == kNoTensor;
  }
  (void)requests_->Say(site::Now(), asked);
}

Status SiteClient::Fill(Request& request) {
  TensorState* const tensor = TensorOf(request.tensor);
  if (request.message.kind == SiteKind::kStep) {
    if (Status s = FillGradient(*tensor, request, world_size_); !s.ok()) return s;
  }
  if (site::Encode(request.message).size() <= mailbox_->most_bytes()) return {};
  return {StatusCode::kInvalidArgument, request.message.text +
                                            ": the request is longer than a seg of the site, " +
                                            std::to_string(mailbox_->most_bytes()) + " bytes"};
}

void SiteClient::End(Request& request, const Status& outcome) {
  if (request.promise) {
    ++(outcome.ok() ? counts_.operations_succeeded : counts_.operations_failed);
    ends_.push_back({std::move(request.promise), outcome, request.stats});
  } else if (!outcome.ok()) {
    return Fail(outcome);  // what the client itself has asked
  }
  if (outcome.ok()) Learn(request);
  const uint64_t seq = request.message.seq;
  requests_->End(site::Now(), request);
  TensorState* const tensor = TensorOf(request.tensor);
  if (tensor != nullptr && tensor->active == seq) StartNext(*tensor);
}

void SiteClient::Learn(const Request& request) {
  if (request.message.kind == SiteKind::kBarrier) {
    passed_ = request.message.text;
    ++passes_;
  }
  TensorState* const tensor = TensorOf(request.tensor);
  if (tensor == nullptr) return;
  if (request.message.kind == SiteKind::kStep) tensor->rounds = request.stats.round + 1;
  if (request.message.kind == SiteKind::kPull) tensor->rounds = request.stats.round;
}

void SiteClient::Fail(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = why;
    changed_.notify_all();
  }
  EndAll(why);
}

void SiteClient::EndAll(const Status& why) {
  const auto end = [this, &why](Request& request) {
    if (request.ended || !request.promise) return;
    ++counts_.operations_failed;
    ends_.push_back({std::move(request.promise), why, request.stats});
  };
  requests_->Clear(end);
  for (TensorState& tensor : tensors_.all()) {
    for (Request& request : tensor.waiting) end(request);
    tensor.waiting.clear();
    tensor.active = 0;
  }
}

// --- Time ---

void SiteClient::OnTimer(Instant now) {
  const bool joins = !welcomed_ && options_.connect_timeout > Duration(0);
  const Duration most = joins ? options_.connect_timeout : options_.idle_timeout;
  const bool silent = now - heard_ > most;
  if (silent && status().ok()) {
    Fail(NoRelay(options_.offload, most, welcomed_));
  }
  if (now >= hello_) SendHello(now);
  requests_->Repeat(now);
  if (options_.wait_timeout == Duration(0)) return;
  for (const uint64_t seq : requests_->Late(now, options_.wait_timeout)) {
    Request& request = *requests_->Find(seq);
    End(request, {StatusCode::kDeadlineExceeded, site::NamesOf(request.missing) + ": not here within " +
                                                     SecondsText(options_.wait_timeout)});
  }
}

// Also says that this rank lives.
void SiteClient::SendHello(Instant now) {
  SiteMessage hello;
  hello.kind = SiteKind::kHello;
  hello.text = passed_;
  hello.mid = passes_;
  hello.value = job_;
  (void)requests_->SendToOwnNode(hello);
  // Where none is known: node 0's leads at the start, and is the only one of a daemon that has all nodes.
  if (requests_->relay().node != requests_->own().node) (void)requests_->Send(hello);
  hello_ = now + (welcomed_ ? std::min<Duration>(options_.idle_timeout / 8, std::chrono::seconds(1))
                            : std::chrono::milliseconds(20));
}

// --- The user's calls ---

Operation SiteClient::Launch(Request request) {
  auto [operation, promise] = NewOperation();
  {
    const std::lock_guard lock(mutex_);
    if (leaving_ && request.message.kind != SiteKind::kLeave) {
      promise->End(HasLeft(), {});
      return operation;
    }
  }
  request.promise = std::move(promise);
  // A std::function is copyable, a request is not meant to be.
  auto held = std::make_shared<Request>(std::move(request));
  Post([this, held] { Add(std::move(*held)); });
  return operation;
}

Result<Tensor> SiteClient::Declare(const std::string& name, const TensorOptions& options) {
  if (UserCalls::InCallback()) return InACallback("Declare");
  const uint64_t most = mailbox_->device().site().max_message_bytes;
  if (Status s = CheckDeclaration(name, options, most); !s.ok()) return s;
  Tensor tensor = MakeTensor(name, options);
  auto index = std::make_shared<uint32_t>(kNoTensor);
  Request request;
  request.message.kind = SiteKind::kDeclare;
  request.message.text = name;
  request.message.body = site::EncodeOptions(options);
  request.message.value = options.initial.empty() ? 0 : 1;
  request.values = options.initial;
  request.on_end = [this, index, count = options.count](const SiteMessage& message) {
    return TakeDeclared(message, *index, count);
  };
  auto [declared, promise] = NewOperation();
  request.promise = std::move(promise);
  auto held = std::make_shared<Request>(std::move(request));
  Post([this, held, index, count = options.count] {
    *index = tensors_.IndexOf(held->message.text, held->message.body);
    TensorState& state = *tensors_.Find(*index);
    if (const Status s = tensors_.Prepare(mailbox_->device(), state, count); !s.ok()) {
      ends_.push_back({std::move(held->promise), s, {}});
      return;
    }
    held->send = state.send;
    Add(std::move(*held));
  });
  if (Status s = declared.Wait(); !s.ok()) return s;
  SetHandle(*index, &tensor);
  return tensor;
}

Status SiteClient::TakeDeclared(const SiteMessage& message, uint32_t index, uint64_t count) {
  TensorState& tensor = *tensors_.Find(index);
  const uint32_t before = tensor.remote;
  Status taken = tensors_.TakeDeclared(mailbox_->device(), message, tensor, count);
  if (taken.ok() && tensor.remote != before) GoOn(tensor);
  return taken;
}

Operation SiteClient::Contribute(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                                 const PushOptions& options) {
  for (const Status& check :
       {CheckRequest(tensor, gradient, out), worker::CheckWeight(options),
        CheckCount(tensor, gradient.size()), out.empty() ? Status() : CheckCount(tensor, out.size())}) {
    if (!check.ok()) return Refused(check);
  }
  Request request;
  request.weight = options.weight.value_or(options_.weight);
  if (settings_.policy == LossPolicy::kShift && request.weight != options_.weight) {
    return Refused(
        {StatusCode::kInvalidArgument, "with policy shift every contribution has the connection's weight"});
  }
  request.message.kind = SiteKind::kStep;
  request.message.tensor = request.tensor = HandleOf(tensor);
  request.message.value = out.empty() ? 0 : 1;
  request.values = gradient;
  request.out = out;
  return Launch(std::move(request));
}

Operation SiteClient::Push(const Tensor& tensor, std::span<const float> gradient,
                           const PushOptions& options) {
  return Contribute(tensor, gradient, {}, options);
}

Operation SiteClient::PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                               const PushOptions& options) {
  if (Status s = CheckTensor(tensor); !s.ok()) return Refused(s);
  if (Status s = CheckCount(tensor, out.size()); !s.ok()) return Refused(s);
  return Contribute(tensor, gradient, out, options);
}

// The clocks that the server keeps are of its members, and the site is one of them.
static Status OfTheSite(const char* what) {
  return {StatusCode::kFailedPrecondition,
          std::string(what) + " is of a member of the job, and this rank's site is one as a whole"};
}

Result<TensorClock> SiteClient::Clock(const Tensor& tensor) {
  if (Status s = CheckTensor(tensor); !s.ok()) return s;
  return OfTheSite("a clock");
}

Operation SiteClient::Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options) {
  for (const Status& check : {CheckPull(tensor, out), CheckCount(tensor, out.size())}) {
    if (!check.ok()) return Refused(check);
  }
  if (options.max_staleness) return Refused(OfTheSite("max_staleness"));
  Request request;
  request.message.kind = SiteKind::kPull;
  request.message.tensor = request.tensor = HandleOf(tensor);
  request.message.value = options.min_round;
  request.out = out;
  return Launch(std::move(request));
}

Status SiteClient::SetScores(const Tensor& tensor, std::span<const float> scores) {
  if (Status s = CheckScores(tensor, scores); !s.ok()) return s;
  Request request;
  request.message.kind = SiteKind::kScores;
  request.message.tensor = request.tensor = HandleOf(tensor);
  request.message.value = scores.size();
  request.scores.assign(scores.begin(), scores.end());
  (void)Launch(std::move(request));
  return {};
}

Status SiteClient::Barrier(const std::string& name) {
  if (UserCalls::InCallback()) return InACallback("Barrier");
  if (name.empty() || name.size() > site::kMaxTextBytes) {
    return {StatusCode::kInvalidArgument, "a barrier's name has 1..256 bytes"};
  }
  Request request;
  request.message.kind = SiteKind::kBarrier;
  request.message.text = name;
  return Launch(std::move(request)).Wait();
}

Status SiteClient::Leave(const Status& why) {
  if (UserCalls::InCallback()) return InACallback("Leave");
  if (Status s = worker::CheckCode(why); !s.ok()) return s;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  if (why.ok()) {
    WaitForOperations();
  } else {
    Post([this] { EndAll({StatusCode::kCancelled, "this worker leaves the job"}); });
  }
  Request request;
  request.message.kind = SiteKind::kLeave;
  request.message.SetStatus(why);
  const Status told = Launch(std::move(request)).Wait();
  const std::lock_guard lock(mutex_);
  return failure_.ok() ? told : failure_;
}

Status SiteClient::status() {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  return leaving_ ? HasLeft() : Status::Ok();
}

ClientStats SiteClient::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::optional<ClientStats> SiteClient::Ask() {
  const auto post = [this](std::function<void()> command) { return Post(std::move(command)), true; };
  return OnOwnThread() || RunsSoon(post, [] {}) ? std::optional(stats()) : std::nullopt;
}

}  // namespace

Result<std::shared_ptr<ClientImpl>> ConnectToSite(const ConnectOptions& options) {
  return SiteClient::Connect(options);
}

}  // namespace longhaul::internal
