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
                     [this](const offload::Completion& c) { completions_.push_back(c); });
      if (found) return found;
      mailbox_->Wait(std::chrono::milliseconds(20));
      if (i % 10 == 9) Say(again);
    }
    return std::nullopt;
  }
  // Until it is done, by everything that the rank has in it.
  SiteMessage Declare(const std::string& name) {
    SiteMessage declare{
        .kind = SiteKind::kDeclare, .seq = ++seq_, .text = name, .body = EncodeOptions({.count = kCount})};
    Say(declare);
    const auto end = Await(SiteKind::kEnd, seq_, declare);
    EXPECT_TRUE(end.has_value());
    Say({.kind = SiteKind::kTaken, .seq = seq_});
    return end.value_or(SiteMessage());
  }
  // Asks for a step and returns its go.
  SiteMessage AskStep(uint32_t tensor) {
    SiteMessage step{.kind = SiteKind::kStep, .seq = ++seq_, .tensor = tensor, .value = 1};
    Say(step);
    const auto go = Await(SiteKind::kGo, seq_, step);
    EXPECT_TRUE(go.has_value());
    return go.value_or(SiteMessage());
  }
  void Contribute(const SiteMessage& go, float value) {
    if (!memory_) memory_ = mailbox_->device().Allocate((kCount + 1) * sizeof(float)).value();
    auto* const floats = reinterpret_cast<float*>(memory_->memory.data());
    std::fill_n(floats, kCount, value);
    floats[kCount] = 1;
    offload::WorkRequest work;
    work.opcode = offload::Opcode::kReduce;
    work.root_node = Relay().node;
    work.root_rank = Relay().slot;
    work.jid = JobOfLeader(leader_);
    work.mid = go.mid;
    work.ranks = go.ranks;
    work.nodes = go.value;
    work.length = memory_->memory.size();
    work.send = {memory_->key, 0};
    EXPECT_TRUE(mailbox_->Post(work).ok());
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

  SiteShape shape_;
  uint8_t rank_ = 0;
  const uint64_t session_ = NewSession();
  std::unique_ptr<Mailbox> mailbox_;
  std::optional<offload::Allocation> memory_;
  std::vector<offload::Completion> completions_;
  uint64_t seq_ = 0;
  uint64_t leader_ = 0;
};

}  // namespace longhaul::site
