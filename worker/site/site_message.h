// What the ranks of a site and its relay say to each other, in ordinary datagrams of their devices. Any of
// them may be lost: a rank repeats a request until it is answered, and the relay repeats its answer.
//
//   rank    hello                                                    -> welcome, failed; moved: another relay leads
//   rank    declare, step, pull, scores, barrier, leave              -> pending ... upload | go | deliver ... end
//   rank    refused: a collective cannot be, since this rank's device is not in it
//   rank    taken: the end is known, or the rank has given up        -> closed
//
//   relay   beat: this node lives, and what it knows                 -> (to the relays of the other nodes)
//   relay   over: the job has ended for the site
//
// A request has a number, which is the rank's; its answers have it too. Ranks are numbered node after node
// (SiteShape). What one relay says and is told counts under its leadership only. When not: data, which goes
// through collectives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "longhaul/client.h"
#include "longhaul/job.h"
#include "worker/site/site_shape.h"

namespace longhaul::site {

// Moves with every change of what is below.
inline constexpr uint8_t kSiteVersion = 3;
// Of names and of texts for people; what is longer is cut.
inline constexpr size_t kMaxTextBytes = 256;
// Without text and body.
inline constexpr size_t kHeaderBytes = 70;

enum class SiteKind : uint8_t {
  kHello = 1,    // text: the last barrier that the rank has passed; mid: how many it has; value: the job that
                 // it is in, 0: none yet
  kDeclare = 2,  // text: name; body: options; value: 1 with initial values
  kStep = 3,    // tensor; value: 1 if the result is wanted; ranks: 0, or it was asked of an earlier leader: 1
                // and the rounds whose results the rank has
  kPull = 4,    // tensor; value: min_round
  kScores = 5,  // tensor; value: how many
  kBarrier =
      6,       // text: name; mid: how many the rank has passed; value: 1 if it was asked of an earlier leader
  kLeave = 7,  // code, text
  kTaken = 8,
  kRefused =
      9,  // seq; mid: a collective that the rank's device takes no part in; value: its offload::WorkStatus

  kWelcome = 16,  // tensor: the rank's number; mid: ranks of the site; value: member << 32 | members; ranks:
                  // the number of the server's job; body: its settings
  kPending = 17,  // ranks: who is waited for
  // Of collectives: mid; ranks: those of the rank's node, as its device counts them; value: the nodes.
  kUpload = 18,   // broadcast the values
  kGo = 19,       // add the gradient
  kDeliver = 20,  // receive the result; body: statistics
  kEnd = 21,      // code, text; of a step or pull: body; of a declaration: tensor, place of results (below)
  kClosed = 22,
  kFailed = 23,  // code, text: nothing of this rank will be answered otherwise
  kMoved = 24,   // leader: who leads
  // Between relays. rank: the sender's node.
  kBeat = 25,  // session: of its process; seq: grows; ranks: of its node, that are here; value: incarnation;
               // tensor: flags; mid: ms of silence after which a relay is dead
  kOver = 26,  // code, text
};

// One layout for all kinds. What a kind has no use for is zero.
struct SiteMessage {
  SiteKind kind = SiteKind::kHello;
  uint8_t rank = 0;        // the rank's, of either side
  uint64_t session = 0;    // of the rank's client; another one is another client
  uint64_t leader = 0;     // the leadership that it is said under
  uint64_t seq = 0;        // of the request
  uint64_t open_from = 0;  // of a rank's: all its requests of lower numbers are closed
  uint32_t tensor = 0;
  uint32_t mid = 0;
  uint64_t ranks = 0;
  uint64_t value = 0;
  StatusCode code = StatusCode::kOk;
  std::string text = {};
  std::vector<uint8_t> body = {};

  Status status() const { return code == StatusCode::kOk ? Status() : Status(code, text); }
  void SetStatus(const Status& status) {
    code = status.code();
    text = status.message();
  }
};

std::vector<uint8_t> Encode(const SiteMessage& message);
// None: no message of this version. Lengths are those of `bytes`, kinds and codes exist, texts have no
// control characters.
std::optional<SiteMessage> Decode(ByteSpan bytes);

// Claims that a site bears: each costs half a second of silence at least, so that these last for 68 years.
inline constexpr uint64_t kMostClaims = uint64_t{1} << 32;
// Of a beat: a successor of each claim can exceed it.
inline constexpr uint64_t kMostIncarnation = UINT64_MAX - kMostClaims;
// Whether that device may say this: a rank asks in its own name, the relay that leads answers, each relay
// speaks for its node. What a beat claims has room for successors.
bool MaySay(Place sender, const SiteShape& shape, const SiteMessage& message);

// Bodies. Decoding returns none for what no encoder writes.
std::vector<uint8_t> EncodeOptions(const TensorOptions& options);  // without initial values
std::optional<TensorOptions> DecodeOptions(ByteSpan bytes);
std::vector<uint8_t> EncodeStats(const OperationStats& stats);
std::optional<OperationStats> DecodeStats(ByteSpan bytes);
std::vector<uint8_t> EncodeJob(const JobSpec& spec);
std::optional<JobSpec> DecodeJob(ByteSpan bytes);

// Where the results of a tensor stand: in memory that all ranks share under a name.
struct ResultPlace {
  uint32_t arena = 0;  // the number in its name
  uint64_t arena_bytes = 0;
  uint64_t offset = 0;
};
std::vector<uint8_t> EncodePlace(const ResultPlace& place);
std::optional<ResultPlace> DecodePlace(ByteSpan bytes);

// "ranks 1, 3 of the site".
std::string NamesOf(uint64_t ranks);

}  // namespace longhaul::site
