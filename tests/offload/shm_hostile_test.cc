// Ranks that write what they like into shared memory and sockets: they harm no other rank.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "tests/offload/shm_support.h"

namespace longhaul::offload {
namespace {

// Ranks 0 and 1 are honest; each round is a message of both.
class ShmHostile : public testing::Test {
 protected:
  void SetUp() override { HonestRound(); }
  void HonestRound() {
    const uint32_t mid = ++mid_;
    for (RankArrays* of : {&x_, &y_}) {
      of->receive.assign(of->receive.size(), -1);
      WorkRequest request = of->Request(mid, mid);
      request.ranks = 0b11;
      request.jid = 15;
      ASSERT_TRUE(of->device->Post({&request, 1}).ok());
    }
    for (RankArrays* of : {&x_, &y_}) {
      const Completion done = NextOf(*of->device);
      ASSERT_EQ(done.wr_id, mid);
      ASSERT_EQ(done.status, WorkStatus::kSuccess);
      for (size_t i = 0; i < of->receive.size(); ++i)
        ASSERT_EQ(of->receive[i], static_cast<int32_t>(2 * i + 30));
    }
  }

  ProcessSite site_{{.ranks_per_node = 3, .queue_depth = 64}};
  Device a_ = site_.Open(0);
  Device b_ = site_.Open(1);
  RankArrays x_{a_, 3000, 10};
  RankArrays y_{b_, 3000, 20};
  uint32_t mid_ = 0;
};

TEST_F(ShmHostile, CursorsThatCannotBeEndTheSession) {
  for (const uint32_t tail : {65u, 0x80000000u, UINT32_MAX}) {
    RawRank raw(site_.path(), 2);
    raw.memory().words().request_tail.value = tail;
    raw.Wake();
    EXPECT_TRUE(raw.IsEnded()) << tail;
    HonestRound();
  }
  RawRank raw(site_.path(), 2);
  raw.memory().words().completion_head.value = 1000;  // beyond what there ever was
  WireRequest query;
  query.opcode = static_cast<uint8_t>(Opcode::kQuery);
  for (int i = 0; i < 64; ++i) raw.Post(query);
  for (int i = 0; i < 5000 && raw.memory().words().completion_tail.value != 64; ++i) usleep(1000);
  ASSERT_EQ(raw.memory().words().completion_tail.value, 64u);
  raw.Post(query);
  EXPECT_TRUE(raw.IsEnded());
  HonestRound();
}

TEST_F(ShmHostile, KeysOfOthersAreNoKeys) {
  RawRank raw(site_.path(), 2);
  const auto mine = raw.Allocate(12'000).value();
  for (const uint32_t key : {x_.send_key, x_.receive_key, y_.receive_key, UINT32_MAX, 0u}) {
    WireRequest request;
    request.token = key;
    request.type = static_cast<uint8_t>(DataType::kInt32);
    request.ranks = 0b100;
    request.mid = ++mid_;
    request.length = 12'000;
    request.send_key = mine.reply.key;
    request.receive_key = key;
    raw.Post(request);
    const auto refused = raw.Next();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->token, key);
    EXPECT_EQ(refused->status, static_cast<uint8_t>(WorkStatus::kProtectionError));
    // Its own key, and a way out of its region.
    for (const uint64_t offset : {uint64_t{4}, UINT64_MAX - 100, uint64_t{1} << 40}) {
      request.receive_key = mine.reply.key;
      request.receive_offset = offset;
      request.mid = ++mid_;
      raw.Post(request);
      const auto outside = raw.Next();
      ASSERT_TRUE(outside.has_value());
      EXPECT_EQ(outside->status, static_cast<uint8_t>(WorkStatus::kProtectionError)) << offset;
    }
  }
  HonestRound();
  EXPECT_EQ(x_.send[2999], 3009);
}

TEST_F(ShmHostile, SharedMemoryCannotBeTruncated) {
  RawRank raw(site_.path(), 2);
  const auto region = raw.Allocate(1 << 20).value();
  for (const int fd : {raw.memory_fd(), region.descriptors[0].get()}) {
    EXPECT_NE(ftruncate(fd, 0), 0);
    EXPECT_NE(ftruncate(fd, 1 << 24), 0);
    EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);  // zeros, no fault
  }
  HonestRound();
}

// Requests of random bytes, and such in which a few fields are random.
TEST_F(ShmHostile, RandomRequestsHarmNobody) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::optional<RawRank> raw;
  uint32_t key = 0;
  for (int i = 0; i < 4000; ++i) {
    if (!raw || raw->memory().words().ended.value != 0) {
      raw.reset();
      while (!raw || !raw->open()) raw.emplace(site_.path(), 2, true);
      key = raw->Allocate(8192).value().reply.key;
    }
    std::array<uint64_t, sizeof(WireRequest) / 8> words;
    for (uint64_t& word : words) word = random();
    auto request = std::bit_cast<WireRequest>(words);
    if (random() % 8 != 0) {
      WireRequest likely;
      likely.opcode = static_cast<uint8_t>(random() % 9);
      likely.op = static_cast<uint8_t>(random() % 7);
      likely.type = static_cast<uint8_t>(random() % 6);
      likely.flags = static_cast<uint8_t>(random());
      likely.jid = static_cast<uint16_t>(random() % 20 == 15 ? 0 : random() % 15);
      likely.mid = static_cast<uint32_t>(random() % 50);
      likely.length = random() % 9000;
      likely.ranks = random() % 3 == 0 ? 0b100 : random() % 16;
      likely.send_key = likely.receive_key = key;
      likely.job_policy = static_cast<uint8_t>(random() % 4);
      likely.nodes = random() % 3;
      if (random() % 3 == 0) likely.deadline_ns = static_cast<int64_t>(random());
      if (random() % 5 == 0) likely.length = request.length;
      if (random() % 5 == 0) likely.send_offset = request.send_offset;
      if (random() % 5 == 0) likely.first_seg = request.first_seg;
      if (random() % 5 == 0) likely.seg_count = request.seg_count;
      if (random() % 5 == 0) likely.root_rank = request.root_rank;
      request = likely;
    }
    // Not the honest ranks' messages: a rank of a job may cancel and join what is its job's.
    if (request.jid == 15 || request.opcode == static_cast<uint8_t>(Opcode::kConfig)) request.jid = 3;
    raw->Post(request);
    // What has come is taken as it likes to show it.
    raw->memory().words().completion_head.value = raw->memory().words().completion_tail.value.load();
    if (i % 200 == 0) HonestRound();
    if (HasFatalFailure()) return;
  }
  HonestRound();
}

// The rings and words are random bytes that change while the daemon reads them.
TEST_F(ShmHostile, RandomBytesInTheRingsHarmNobody) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    RawRank raw(site_.path(), 2, true);
    if (!raw.open()) continue;  // its predecessor is not gone yet
    auto* const bytes = raw.memory().memory().data();
    for (int k = 0; k < 200; ++k) {
      const uint64_t value = random();
      const uint64_t at = random() % (raw.memory().memory().size() / 8) * 8;
      std::memcpy(bytes + (k % 3 == 0 ? random() % 7 * 64 : at), &value, 8);
      raw.memory().words().request_tail.value = static_cast<uint32_t>(k);
    }
    raw.Wake();
    if (i % 30 == 0) HonestRound();
    if (HasFatalFailure()) return;
  }
  HonestRound();
}

TEST_F(ShmHostile, ThousandsOfConnectionsHarmNobody) {
  std::vector<FileDescriptor> crowd;
  for (int i = 0; i < 3000; ++i) {
    auto socket = SocketFile::Connect(site_.path());
    if (socket.ok()) crowd.push_back(std::move(*socket));
    if (crowd.size() > 500) crowd.erase(crowd.begin(), crowd.begin() + 100);
    if (i % 500 == 0) HonestRound();
  }
  EXPECT_TRUE(Device::Open(site_.where(), {.rank = 2}).ok());
  EXPECT_LT(site_.CountFds(), 200u);  // strangers are bounded
  HonestRound();
}

TEST_F(ShmHostile, MessagesThatNoLibraryWritesEndTheConnection) {
  for (const size_t size :
       {size_t{1}, sizeof(ControlRequest) - 1, sizeof(ControlRequest) + 1, size_t{20'000}}) {
    const FileDescriptor socket = SocketFile::Connect(site_.path()).value();
    const std::vector<char> bytes(size, 'x');
    ASSERT_EQ(send(socket.get(), bytes.data(), size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    char byte;
    EXPECT_LE(recv(socket.get(), &byte, 1, 0), 0) << size;
  }
  RawRank raw(site_.path(), 2);
  ControlRequest again;  // it has said who it is
  ASSERT_EQ(send(raw.control(), &again, sizeof again, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof again));
  EXPECT_TRUE(raw.IsEnded());
  HonestRound();
}

// Descriptors that come along are never taken: the daemon's table cannot be filled.
TEST_F(ShmHostile, DescriptorsAreNotTaken) {
  RawRank raw(site_.path(), 2);
  HonestRound();
  const size_t before = site_.CountFds();
  ControlRequest request;
  request.kind = ControlKind::kStats;
  iovec part{&request, sizeof request};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const std::array<int, 2> both{raw.control(), raw.wake_up()};
  std::memcpy(CMSG_DATA(header), both.data(), sizeof both);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(sendmsg(raw.control(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof request));
    ControlReply reply;
    ASSERT_EQ(recv(raw.control(), &reply, sizeof reply, 0), static_cast<ssize_t>(sizeof reply));
  }
  EXPECT_EQ(site_.CountFds(), before);
  HonestRound();
}

// It asks for notifications, rings the bell and never takes anything out of its socket or its ring.
TEST_F(ShmHostile, ARankThatTakesNothingHoldsUpNobody) {
  RawRank raw(site_.path(), 2);
  WireRequest query;
  query.opcode = static_cast<uint8_t>(Opcode::kQuery);
  for (int i = 0; i < 60; ++i) raw.Post(query);
  for (int i = 0; i < 1000; ++i) {  // more than its socket holds
    raw.memory().words().rank_waits.value = 1;
    raw.Wake();
    for (int k = 0; k < 5 && raw.memory().words().rank_waits.value != 0; ++k) usleep(1000);
  }
  for (int i = 0; i < 1000; ++i) {  // calls whose answers it does not read
    ControlRequest request;
    request.kind = ControlKind::kStats;
    if (send(raw.control(), &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
  }
  HonestRound();
}

// Messages that no other rank joins: others keep their room for messages.
TEST_F(ShmHostile, ARankThatOpensMessagesLeavesOthersTheirs) {
  RawRank raw(site_.path(), 2);
  const uint32_t key = raw.Allocate(4096).value().reply.key;
  for (uint32_t i = 0; i < 60; ++i) {
    WireRequest request;
    request.ranks = 0b111;
    request.mid = i;
    request.jid = 4;
    request.length = 4096;
    request.send_key = request.receive_key = key;
    request.deadline_ns = INT64_MAX - 1;
    raw.Post(request);
  }
  constexpr uint32_t kShare = 64 / 3;
  for (uint32_t i = kShare; i < 60; ++i) {
    const auto refused = raw.Next();
    ASSERT_TRUE(refused.has_value());
    ASSERT_EQ(refused->status, static_cast<uint8_t>(WorkStatus::kOverflow));
  }
  for (int i = 0; i < 30; ++i) HonestRound();
  EXPECT_EQ(raw.memory().words().completion_tail.value, 60 - kShare);  // the deadline has not wrapped around
}

// Data that change while they are summed change the sum, and nothing else.
TEST_F(ShmHostile, DataThatChangeUnderASumHarmNothing) {
  RawRank raw(site_.path(), 2);
  auto region = raw.Allocate(1 << 20).value();
  const auto memory = SharedMemory::Map(std::move(region.descriptors[0]), region.reply.bytes).value();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) std::memset(memory.data(), static_cast<int>(random()), 1 << 20);
  });
  for (int i = 0; i < 50; ++i) {
    WireRequest request;
    request.type = static_cast<uint8_t>(DataType::kFloat16);
    request.ranks = 0b100;
    request.mid = static_cast<uint32_t>(i);
    request.length = 1 << 20;
    request.send_key = request.receive_key = region.reply.key;
    raw.Post(request);
    EXPECT_EQ(raw.Next().value_or(WireCompletion{.status = 99}).status, 0);
  }
  stop = true;
  writer.join();
  HonestRound();
}

}  // namespace
}  // namespace longhaul::offload
