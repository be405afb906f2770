#include "transport/core/path/ecn_validator.h"

#include <gtest/gtest.h>

namespace longhaul::transport {
namespace {

using State = EcnValidator::State;

void Send(EcnValidator* ecn, uint64_t packets) {
  for (uint64_t i = 0; i < packets; ++i) ecn->OnMarkedSent();
}

TEST(EcnValidator, MarksAFewThenWaitsForTheCounts) {
  EcnValidator ecn(true);
  EXPECT_TRUE(ecn.marks());
  Send(&ecn, EcnValidator::kTestingPackets);
  EXPECT_FALSE(ecn.marks());
  EXPECT_EQ(ecn.OnAck(true, 10, 10, 0), 0u);
  EXPECT_TRUE(ecn.marks());
  EXPECT_EQ(ecn.state(), State::kCapable);
}

TEST(EcnValidator, SwitchedOffItMarksAndBelievesNothing) {
  EcnValidator ecn(false);
  EXPECT_FALSE(ecn.marks());
  EXPECT_EQ(ecn.OnAck(true, 0, 0, 5), 0u);
  EXPECT_EQ(ecn.state(), State::kOff);
}

TEST(EcnValidator, GivesNewCeMarksOnce) {
  EcnValidator ecn(true);
  Send(&ecn, 10);
  EXPECT_EQ(ecn.OnAck(true, 5, 3, 2), 2u);
  EXPECT_EQ(ecn.OnAck(false, 1, 3, 3), 0u);  // an older ACK that came late says nothing
  EXPECT_EQ(ecn.OnAck(true, 5, 7, 3), 1u);
  EXPECT_EQ(ecn.ce(), 3u);
}

TEST(EcnValidator, LostAcksAndLatePacketsMakeTheCountsLargerThanTheAck) {
  EcnValidator ecn(true);
  Send(&ecn, 10);
  EXPECT_EQ(ecn.OnAck(true, 2, 9, 1), 1u);  // the others were in an ACK that is yet to come
  EXPECT_EQ(ecn.state(), State::kCapable);
}

TEST(EcnValidator, BleachedMarksEndIt) {
  EcnValidator ecn(true);
  Send(&ecn, 10);
  EXPECT_EQ(ecn.OnAck(true, 4, 0, 0), 0u);
  EXPECT_EQ(ecn.state(), State::kFailed);
  EXPECT_FALSE(ecn.marks());
  EXPECT_EQ(ecn.OnAck(true, 4, 8, 3), 0u);
}

TEST(EcnValidator, APathThatBeginsToBleachIsFoundLater) {
  EcnValidator ecn(true);
  Send(&ecn, 10);
  ecn.OnAck(true, 10, 10, 0);
  Send(&ecn, 5);
  ecn.OnAck(true, 5, 14, 0);  // one of five is missing
  EXPECT_EQ(ecn.state(), State::kFailed);
}

TEST(EcnValidator, CountsThatWereNeverSentOrGoBackEndIt) {
  EcnValidator invented(true);
  Send(&invented, 10);
  EXPECT_EQ(invented.OnAck(true, 1, 5, ~uint64_t{0}), 0u);
  EXPECT_EQ(invented.state(), State::kFailed);
  EcnValidator backwards(true);
  Send(&backwards, 10);
  backwards.OnAck(true, 4, 2, 2);
  EXPECT_EQ(backwards.OnAck(true, 0, 1, 3), 0u);
  EXPECT_EQ(backwards.state(), State::kFailed);
}

TEST(EcnValidator, APathThatDropsWhatIsMarkedIsLeftAlone) {
  EcnValidator ecn(true);
  Send(&ecn, 10);
  for (int i = 0; i < 9; ++i) ecn.OnMarkedLost();
  EXPECT_EQ(ecn.state(), State::kUnknown);
  ecn.OnMarkedLost();
  EXPECT_EQ(ecn.state(), State::kFailed);
}

TEST(EcnValidator, AnotherPathIsTestedAnewFromWhatThePeerHasCountedByThen) {
  for (const bool failed : {false, true}) {
    EcnValidator ecn(true);
    Send(&ecn, 10);
    ecn.OnAck(true, 10, failed ? 0 : 8, failed ? 0 : 2);
    EXPECT_EQ(ecn.state(), failed ? State::kFailed : State::kCapable);
    ecn.Restart();
    EXPECT_TRUE(ecn.marks());
    Send(&ecn, EcnValidator::kTestingPackets);
    EXPECT_FALSE(ecn.marks());
    EXPECT_EQ(ecn.OnAck(true, 3, 11, 5), 0u);  // where the new path begins
    EXPECT_EQ(ecn.OnAck(true, 2, 12, 6), 1u);
    EXPECT_EQ(ecn.state(), State::kCapable);
  }
}

TEST(EcnValidator, OrdinaryLossDoesNotEndIt) {
  EcnValidator ecn(true);
  Send(&ecn, 10);
  for (int i = 0; i < 9; ++i) ecn.OnMarkedLost();
  ecn.OnAck(true, 1, 1, 0);
  ecn.OnMarkedLost();
  EXPECT_EQ(ecn.state(), State::kCapable);
}

}  // namespace
}  // namespace longhaul::transport
