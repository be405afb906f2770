// Members of the job against each other: somebody wants another's rank, and with it the weight of its
// gradients.
#include "tests/attack/support/certified_test.h"

namespace longhaul::attack {
namespace {

template <typename Job>
class TryToJoin : public Job {
 protected:
  Result<Client> Try(uint32_t rank, uint64_t incarnation, const std::string& key) {
    ConnectOptions options;
    options.servers = {this->address()};
    options.rank = rank;
    options.world_size = 2;
    options.incarnation = incarnation;
    options.key_file = key;
    options.connect_timeout = kPatience;
    return Client::Connect(options);
  }
};

class Takeover : public TryToJoin<AttackTest> {};

TEST_F(Takeover, OfARankNeedsANewerIncarnation) {
  StartTarget();
  StartPair();
  Round();
  const auto equal = Try(1, 0, key_file());
  ASSERT_FALSE(equal.ok());
  EXPECT_EQ(equal.status().code(), StatusCode::kAlreadyExists) << equal.status().ToString();
  Round();
  FinishPair();
}

TEST_F(Takeover, ByAnOlderIncarnationIsRefusedAlsoWhenTheRankIsAway) {
  StartTarget();
  auto first = Try(0, 7, key_file());
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  for (const uint64_t older : {uint64_t{0}, uint64_t{6}, uint64_t{7}}) {
    const auto refused = Try(0, older, key_file());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kAlreadyExists) << refused.status().ToString();
  }
  EXPECT_TRUE(first->status().ok()) << first->status().ToString();
}

// With certificates the newest incarnation is worth nothing to who is somebody else.
class CertifiedTakeover : public TryToJoin<CertifiedTest> {};

TEST_F(CertifiedTakeover, NeedsTheSameIdentity) {
  StartTarget();
  StartPair();
  Round();
  const auto refused = Try(1, 1000, KeyOf("intruder"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied) << refused.status().ToString();
  const auto other_member = Try(1, 1000, KeyOf("worker0"));
  ASSERT_FALSE(other_member.ok()) << "a member takes a second rank";
  Round();
  FinishPair();
}

TEST_F(CertifiedTakeover, AToolIsNoWorker) {
  StartTarget();
  const auto refused = Try(0, 0, KeyOf("tool"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(AskServer().value("joined", -1), 0);
}

}  // namespace
}  // namespace longhaul::attack
