// The end of a connection: how often, how far apart and with which words CLOSE leaves.
#include "transport/core/connection/closing.h"

#include <gtest/gtest.h>

namespace longhaul::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Status kWhy(StatusCode::kUnavailable, "the job is over");

// Sends every copy when it is due; the gaps between them.
std::vector<Duration> Gaps(Duration pto) {
  Closing closing;
  Instant now = Instant() + seconds(1);
  closing.Begin(now, kWhy);
  std::vector<Duration> gaps;
  while (!closing.Done(now)) {
    if (closing.CopyDue(now)) closing.OnCopySent(now, pto);
    gaps.push_back(closing.Deadline() - now);
    now = closing.Deadline();
  }
  return gaps;
}

TEST(Closing, ThreeCopiesLeaveOneProbeTimeoutApart) {
  EXPECT_EQ(Gaps(milliseconds(100)), std::vector<Duration>(3, milliseconds(100)));
}

TEST(Closing, GapsAreBounded) {
  EXPECT_EQ(Gaps(milliseconds(1)), std::vector<Duration>(3, Closing::kMinGap));
  EXPECT_EQ(Gaps(seconds(10)), std::vector<Duration>(3, Closing::kMaxGap));
}

TEST(Closing, NothingIsDueBeforeItBegins) {
  const Instant now = Instant() + seconds(1);
  Closing closing;
  EXPECT_FALSE(closing.CopyDue(now));
  EXPECT_FALSE(closing.Done(now));
  EXPECT_TRUE(closing.Deadline().IsInfinite());
  closing.Note(kWhy);  // the peer's CLOSE: answered once, by the final datagram
  EXPECT_FALSE(closing.CopyDue(now));
  EXPECT_EQ(closing.why(), kWhy);
}

TEST(Closing, ALongReasonIsCutToItsFrame) {
  Closing closing;
  closing.Begin(Instant(), Status(StatusCode::kInternal, std::string(5000, 'x')));
  EXPECT_EQ(closing.Frame().reason.size(), wire::kMaxCloseReasonBytes);
  EXPECT_EQ(closing.Frame().code, StatusCode::kInternal);
}

TEST(Closing, ThePeersReasonIsPrintable) {
  const std::string reason = Closing::ReasonOf({StatusCode::kInternal, "a\x1b[2Jb\n"});
  for (const char c : reason) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << reason;
}

TEST(Closing, TheFinalDatagramIsTakenOnce) {
  Closing closing;
  closing.SetFinalDatagram({1, 2, 3});
  EXPECT_EQ(closing.TakeFinalDatagram(), (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_TRUE(closing.TakeFinalDatagram().empty());
}

}  // namespace
}  // namespace longhaul::transport
