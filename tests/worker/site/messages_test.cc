// What ranks and relay say to each other, as bytes: everything comes back, and nothing is believed.
#include <gtest/gtest.h>

#include "base/random.h"
#include "worker/site/site_message.h"

namespace longhaul::site {
namespace {

SiteMessage Sample() {
  SiteMessage m;
  m.kind = SiteKind::kDeliver;
  m.rank = 62;
  m.session = 0x0123456789abcdef;
  m.leader = 0x21;
  m.seq = 77;
  m.open_from = 70;
  m.tensor = 3;
  m.mid = 0xfffffff0;
  m.ranks = 0x8000000000000001;
  m.value = 9;
  m.code = StatusCode::kAborted;
  m.text = "the round went on";
  m.body = {1, 2, 3, 4, 5};
  return m;
}

bool Equal(const SiteMessage& a, const SiteMessage& b) {
  return a.kind == b.kind && a.rank == b.rank && a.session == b.session && a.seq == b.seq &&
         a.leader == b.leader && a.open_from == b.open_from && a.tensor == b.tensor && a.mid == b.mid &&
         a.ranks == b.ranks && a.value == b.value && a.code == b.code && a.text == b.text && a.body == b.body;
}

TEST(SiteMessages, EveryFieldComesBack) {
  const std::vector<uint8_t> bytes = Encode(Sample());
  EXPECT_EQ(bytes.size(), kHeaderBytes + 17 + 5);
  const auto back = Decode(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(Equal(*back, Sample()));
}

TEST(SiteMessages, OnlyKindsOfThisVersionAreTaken) {
  for (int kind = 0; kind < 256; ++kind) {
    std::vector<uint8_t> bytes = Encode(Sample());
    bytes[5] = static_cast<uint8_t>(kind);
    const bool known = (kind >= 1 && kind <= 9) || (kind >= 16 && kind <= 26);
    EXPECT_EQ(Decode(bytes).has_value(), known) << kind;
  }
  for (const size_t at : {0, 1, 2, 3, 4}) {
    std::vector<uint8_t> bytes = Encode(Sample());
    bytes[at] ^= 1;
    EXPECT_FALSE(Decode(bytes).has_value()) << "magic and version, byte " << at;
  }
}

TEST(SiteMessages, LengthsAreThoseOfTheDatagram) {
  std::vector<uint8_t> bytes = Encode(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(Decode(ByteSpan(bytes).first(size)));
  bytes.push_back(0);
  EXPECT_FALSE(Decode(bytes)) << "more than it says";
  SiteMessage long_text = Sample();
  long_text.text.assign(1000, 'x');
  EXPECT_EQ(Decode(Encode(long_text))->text.size(), kMaxTextBytes) << "cut";
  std::vector<uint8_t> lie = Encode(Sample());
  lie[68] = 0xff;  // a text of 65 kB
  EXPECT_FALSE(Decode(lie));
}

TEST(SiteMessages, RanksAndCodesThatCannotBeAreRefused) {
  std::vector<uint8_t> bytes = Encode(Sample());
  bytes[6] = 64;
  EXPECT_FALSE(Decode(bytes));
  bytes = Encode(Sample());
  bytes[7] = 200;
  EXPECT_FALSE(Decode(bytes));
}

TEST(SiteMessages, TextsAreHarmless) {
  SiteMessage m = Sample();
  m.text = "a\nb\x1b[31m";
  EXPECT_EQ(Decode(Encode(m))->text.find('\n'), std::string::npos);
}

TEST(SiteMessages, RandomBytesAreNeverMoreThanRefused) {
  const uint64_t seed = 20261124;
  Random random(seed);
  const std::vector<uint8_t> good = Encode(Sample());
  for (int i = 0; i < 200'000; ++i) {
    std::vector<uint8_t> bytes = good;
    for (uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
      bytes[random.Below(bytes.size())] = static_cast<uint8_t>(random.Below(256));
    }
    bytes.resize(random.Below(4) == 0 ? random.Below(bytes.size()) : bytes.size());
    if (const auto m = Decode(bytes)) {
      EXPECT_LE(m->text.size(), kMaxTextBytes) << "seed " << seed;
      EXPECT_LE(m->body.size(), bytes.size()) << "seed " << seed;
      (void)DecodeOptions(m->body);
      (void)DecodeStats(m->body);
      (void)DecodePlace(m->body);
      (void)DecodeJob(m->body);
    }
  }
}

// Two nodes of two ranks; the third slot is the relay's. Node 1 leads.
TEST(SiteMessages, EachSpeaksInItsOwnName) {
  const SiteShape shape{2, 2};
  const auto may = [&shape](Place sender, SiteMessage m) { return MaySay(sender, shape, m); };
  const uint64_t leader = LeadershipOf(7, 1);
  for (const SiteKind kind : {SiteKind::kHello, SiteKind::kStep, SiteKind::kTaken}) {
    EXPECT_TRUE(may({1, 0}, {.kind = kind, .rank = 2, .leader = leader}));
    EXPECT_FALSE(may({1, 0}, {.kind = kind, .rank = 3, .leader = leader})) << "another rank";
    EXPECT_FALSE(may({0, 2}, {.kind = kind, .rank = 2, .leader = leader})) << "a relay";
  }
  for (const SiteKind kind : {SiteKind::kWelcome, SiteKind::kGo, SiteKind::kFailed}) {
    EXPECT_TRUE(may({1, 2}, {.kind = kind, .rank = 0, .leader = leader}));
    EXPECT_FALSE(may({0, 2}, {.kind = kind, .rank = 0, .leader = leader})) << "the other relay";
    EXPECT_FALSE(may({1, 1}, {.kind = kind, .rank = 0, .leader = leader})) << "a rank";
  }
  const SiteMessage moved{.kind = SiteKind::kMoved, .rank = 1, .leader = leader};
  EXPECT_TRUE(may({0, 2}, moved)) << "the relay of the rank's node";
  EXPECT_FALSE(may({1, 2}, moved));
  EXPECT_FALSE(may({0, 0}, moved));
  const SiteMessage over{.kind = SiteKind::kOver, .rank = 1, .leader = leader};
  EXPECT_TRUE(may({1, 2}, over));
  EXPECT_FALSE(may({0, 2}, over));
  EXPECT_FALSE(may({1, 0}, over));
  EXPECT_FALSE(may({0, 2}, {.kind = SiteKind::kOver, .rank = 0, .leader = leader})) << "it does not lead";
  EXPECT_FALSE(may({2, 2}, {.kind = SiteKind::kBeat, .rank = 2})) << "no such node";
  EXPECT_FALSE(may({0, 3}, {.kind = SiteKind::kHello, .rank = 3})) << "no such slot";
}

TEST(SiteMessages, BeatsClaimWhatCanBe) {
  const SiteShape shape{2, 2};
  const auto may = [&shape](SiteMessage m) {
    m.kind = SiteKind::kBeat;
    m.rank = 1;
    return MaySay({1, 2}, shape, m);
  };
  EXPECT_TRUE(may({.leader = LeadershipOf(kMostClaims, 0), .ranks = 0b1100, .value = kMostIncarnation}));
  EXPECT_FALSE(may({.leader = LeadershipOf(kMostClaims + 1, 0)})) << "no successor could exceed it";
  EXPECT_FALSE(may({.leader = LeadershipOf(1, 2)})) << "no such node";
  EXPECT_FALSE(may({.ranks = 0b10})) << "another node's";
  EXPECT_FALSE(may({.value = kMostIncarnation + 1}));
  EXPECT_FALSE(MaySay({0, 2}, shape, {.kind = SiteKind::kBeat, .rank = 1})) << "another relay";
  EXPECT_FALSE(MaySay({1, 0}, shape, {.kind = SiteKind::kBeat, .rank = 1})) << "a rank";
}

TEST(SiteMessages, OptionsOfATensorComeBack) {
  TensorOptions o;
  o.wire_dtype = DType::kInt8;
  o.result_dtype = DType::kFloat16;
  o.priority = -5;
  o.high_ranges = {{1, 2}, {1000, 20}};
  o.high_energy = 0.25;
  o.topk_share = 0.015625;
  o.count = 12345;
  o.optimizer = "sgd:lr=0.1";
  const auto back = DecodeOptions(EncodeOptions(o));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->wire_dtype, o.wire_dtype);
  EXPECT_EQ(back->result_dtype, o.result_dtype);
  EXPECT_EQ(back->priority, -5);
  EXPECT_EQ(back->high_ranges, o.high_ranges);
  EXPECT_FALSE(back->high_share.has_value());
  EXPECT_EQ(back->high_energy, o.high_energy);
  EXPECT_EQ(back->topk_share, o.topk_share);
  EXPECT_EQ(back->count, o.count);
  EXPECT_EQ(back->optimizer, o.optimizer);
  std::vector<uint8_t> bytes = EncodeOptions(o);
  bytes.pop_back();
  EXPECT_FALSE(DecodeOptions(bytes)) << "half a range";
  bytes = EncodeOptions(o);
  bytes[1] = 9;
  EXPECT_FALSE(DecodeOptions(bytes)) << "no such type";
  o.count = 0;
  EXPECT_FALSE(DecodeOptions(EncodeOptions(o)));
}

TEST(SiteMessages, StatisticsAndPlacesComeBack) {
  OperationStats s;
  s.round = 8;
  s.bytes = ByteCount(1'000'000);
  s.lost_chunks = 4;
  s.seconds = 0.5;
  EXPECT_FALSE(DecodeStats(EncodeStats(s))->round_info.has_value());
  s.round_info.emplace(OperationStats::RoundInfo{}).contributors = 3;
  s.round_info->fill_reason = "repaid";
  const auto back = DecodeStats(EncodeStats(s));
  ASSERT_TRUE(back && back->round_info);
  EXPECT_EQ(back->round, 8u);
  EXPECT_EQ(back->bytes, s.bytes);
  EXPECT_EQ(back->lost_chunks, 4u);
  EXPECT_EQ(back->seconds, 0.5);
  EXPECT_EQ(back->round_info->contributors, 3u);
  EXPECT_EQ(back->round_info->fill_reason, "repaid");
  const auto place = DecodePlace(EncodePlace({2, 4096, 64}));
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->arena, 2u);
  EXPECT_EQ(place->offset, 64u);
  EXPECT_FALSE(DecodePlace(EncodePlace({2, 4096, 4097}))) << "beyond its memory";
  JobSpec job;
  job.policy = LossPolicy::kShift;
  EXPECT_EQ(DecodeJob(EncodeJob(job))->policy, LossPolicy::kShift);
}

}  // namespace
}  // namespace longhaul::site
