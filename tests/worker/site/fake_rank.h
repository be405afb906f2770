// A rank whose every word is the test's.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker/site/site_harness.h"
#include "worker/site/mailbox.h"
#include "worker/site/site_clock.h"

namespace longhaul::site {

// A rank that does what the test says, and no more.
class FakeRank {
 public:
  static constexpr size_t kCount = 1000;  // of its tensors

  // slot: of its node's device; passed: the last barrier under an earlier leader.
  FakeRank(const TestNode& node, uint8_t slot, const std::string& passed = {}) {
    auto device = offload::Device::Open(
        node.where(), {.node = offload::DeviceOptions::kDaemonsNode, .rank = slot, .site = {}});
    shape_ = SiteShape::Of(device->site());
    rank_ = shape_.IndexOf({device->node(), slot});
    mailbox_ = Mailbox::Open(*std::move(device)).value();
    const SiteMessage hello{.kind = SiteKind::kHello, .mid = passed.empty() ? 0u : 1u, .text = passed};
    Say(hello);
    EXPECT_TRUE(Await(SiteKind::kWelcome, 0, hello));
  }
  void Say(SiteMessage message) {
    message.rank = rank_;
    message.session = session_;
    message.leader = leader_;
    message.open_from = 1;
    EXPECT_TRUE(mailbox_->Send(Relay(), message));
  }
  // The next answer of that kind to the request, asked for again until it comes; within 20 ms for each turn.
  std::optional<SiteMessage> Await(SiteKind kind, uint64_t seq,
                                   const SiteMessage& again = {.kind = SiteKind::kHello}, int turns = 1000) {
    for (int i = 0; i < turns; ++i) {
      std::optional<SiteMessage> found;
      mailbox_->Poll([] {},
                     [&](const SiteMessage& m) {
                       if (m.session == session_) leader_ = std::max(leader_, m.leader);
                       if (m.kind == kind && m.seq == seq && m.session == session_) found = m;
                     },
                     [](const offload::Completion&) {});
      if (found) return found;
      mailbox_->Wait(std::chrono::milliseconds(20));
      if (i % 10 == 9) Say(again);
    }
    return std::nullopt;
  }
  // In whatever name, to any device of the site.
  void SayAsItIs(Place to, const SiteMessage& message) { EXPECT_TRUE(mailbox_->Send(to, message)); }
  // Asks and returns the answer of that kind.
  SiteMessage Ask(SiteKind kind, SiteMessage message) {
    message.seq = NextSeq();
    Say(message);
    const auto answer = Await(kind, message.seq, message);
    EXPECT_TRUE(answer.has_value());
    return answer.value_or(SiteMessage());
  }
  // What it is answered when it asks once more.
  std::optional<SiteMessage> AskAgain(const SiteMessage& message) {
    mailbox_->Poll([] {}, [](const SiteMessage&) {}, [](const offload::Completion&) {});
    std::optional<SiteMessage> answer;
    Say(message);
    for (int i = 0; i < 100 && !answer; ++i) {
      mailbox_->Wait(std::chrono::milliseconds(20));
      mailbox_->Poll([] {},
                     [&](const SiteMessage& m) {
                       if (m.seq == message.seq) answer = m;
                     },
                     [](const offload::Completion&) {});
    }
    return answer;
  }
  // Until it is done, by everything that the rank has in it.
  SiteMessage Declare(const std::string& name, const std::string& optimizer = "aggregate") {
    SiteMessage declare{.kind = SiteKind::kDeclare,
                        .seq = ++seq_,
                        .text = name,
                        .body = EncodeOptions({.count = kCount, .optimizer = optimizer})};
    Say(declare);
    const auto end = Await(SiteKind::kEnd, seq_, declare);
    EXPECT_TRUE(end.has_value());
    Say({.kind = SiteKind::kTaken, .seq = seq_});
    return end.value_or(SiteMessage());
  }
  // Asks for a step and returns its go.
  SiteMessage AskStep(uint32_t tensor, bool wants = true) {
    return Ask(SiteKind::kGo, {.kind = SiteKind::kStep, .tensor = tensor, .value = wants});
  }
  void Contribute(const SiteMessage& go, float value) {
    std::fill_n(Floats(), kCount, value);
    Floats()[kCount] = 1;
    offload::WorkRequest work;
    work.opcode = offload::Opcode::kReduce;
    work.length = (kCount + 1) * sizeof(float);
    work.send = {memory_->key, 0};
    Post(work, go, Relay());
  }
  // The result, or values, that the relay sends.
  void Receive(const SiteMessage& deliver) {
    (void)Floats();
    offload::WorkRequest work;
    work.opcode = offload::Opcode::kBroadcast;
    work.length = kCount * sizeof(float);
    work.receive = {memory_->key, 0};
    Post(work, deliver, Relay());
  }
  // The initial values that the relay asks for.
  void Give(const SiteMessage& upload, float value) {
    std::fill_n(Floats(), kCount, value);
    offload::WorkRequest work;
    work.opcode = offload::Opcode::kBroadcast;
    work.length = kCount * sizeof(float);
    work.send = work.receive = {memory_->key, 0};
    Post(work, upload, shape_.PlaceOf(rank_));
  }
  // Its answers are not needed any more.
  void Close(uint64_t seq) {
    const SiteMessage taken{.kind = SiteKind::kTaken, .seq = seq};
    Say(taken);
    EXPECT_TRUE(Await(SiteKind::kClosed, seq, taken));
  }
  void CancelCollective(uint32_t mid) {
    EXPECT_TRUE(mailbox_->device().Cancel(JobOfLeader(leader_), mid).ok());
  }
  // So many bytes of its daemon's, for a sum that never is.
  void TakeScratch(uint64_t bytes) {
    const auto memory = mailbox_->device().Allocate(bytes).value();
    offload::WorkRequest work;
    work.opcode = offload::Opcode::kReduce;
    work.mid = 1;
    work.ranks = 3;  // the other one of its node does not take part
    work.nodes = 3;
    work.root_node = Relay().node;
    work.length = bytes;
    work.send = {memory.key, 0};
    EXPECT_TRUE(mailbox_->Post(work).ok());
  }
  uint64_t seq() const { return seq_; }
  uint64_t NextSeq() { return ++seq_; }

 private:
  Place Relay() const { return {NodeOfLeader(leader_), shape_.relay_slot()}; }
  float* Floats() {
    if (!memory_) memory_ = mailbox_->device().Allocate((kCount + 1) * sizeof(float)).value();
    return reinterpret_cast<float*>(memory_->memory.data());
  }
  void Post(offload::WorkRequest work, const SiteMessage& answer, Place root) {
    work.root_node = root.node;
    work.root_rank = root.slot;
    work.jid = JobOfLeader(leader_);
    work.mid = answer.mid;
    work.ranks = answer.ranks;
    work.nodes = answer.value;
    EXPECT_TRUE(mailbox_->Post(work).ok());
  }

  SiteShape shape_;
  uint8_t rank_ = 0;
  const uint64_t session_ = NewSession();
  std::unique_ptr<Mailbox> mailbox_;
  std::optional<offload::Allocation> memory_;
  uint64_t seq_ = 0;
  uint64_t leader_ = 0;
};

}  // namespace longhaul::site
