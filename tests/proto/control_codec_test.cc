#include "proto/control_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/job_settings.h"
#include "base/random.h"

namespace longhaul::wire {
namespace {

using control::ControlMessage;

ControlMessage SomeJoin() {
  ControlMessage message;
  control::Join& join = *message.mutable_join();
  join.set_job("mnist");
  join.set_rank(1);
  join.set_world_size(4);
  join.set_incarnation(7);
  join.set_site("B");
  join.set_weight(0.5f);
  return message;
}

ControlMessage SomeDeclare(const std::string& name) {
  ControlMessage message;
  message.mutable_declare()->set_request(3);
  message.mutable_declare()->set_name(name);
  message.mutable_declare()->set_count(10);
  message.mutable_declare()->set_optimizer("aggregate");
  return message;
}

std::vector<uint8_t> Framed(const ControlMessage& message) {
  const std::string body = message.SerializeAsString();
  std::vector<uint8_t> bytes(VarintSize(body.size()));
  ByteWriter(bytes).Varint(body.size());
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

// What the reader says of the message: "accepted", or why not.
std::string RefusedFor(const ControlMessage& message) {
  const auto result = ControlReader().Append(Framed(message));
  return result.ok() ? std::string("accepted") : result.status().message();
}

TEST(ControlCodec, WhatIsEncodedIsReadBack) {
  ControlReader reader;
  const auto messages = reader.Append(EncodeControlMessage(SomeJoin()));
  ASSERT_TRUE(messages.ok()) << messages.status().ToString();
  ASSERT_EQ(messages->size(), 1u);
  EXPECT_EQ((*messages)[0].join().job(), "mnist");
  EXPECT_EQ((*messages)[0].join().incarnation(), 7u);
  EXPECT_EQ((*messages)[0].join().weight(), 0.5f);
}

TEST(ControlCodec, StreamMayBeCutAnywhere) {
  std::vector<uint8_t> stream = EncodeControlMessage(SomeJoin());
  for (const char* name :
       {"w", "a much longer name that makes the length prefix two bytes long, as it has to be"}) {
    const auto more = EncodeControlMessage(SomeDeclare(name));
    stream.insert(stream.end(), more.begin(), more.end());
  }
  for (size_t step = 1; step <= stream.size(); ++step) {
    ControlReader reader;
    std::vector<ControlMessage> all;
    for (size_t at = 0; at < stream.size(); at += step) {
      auto messages = reader.Append(ByteSpan(stream).subspan(at, std::min(step, stream.size() - at)));
      ASSERT_TRUE(messages.ok()) << "step " << step;
      for (auto& message : *messages) all.push_back(message);
    }
    ASSERT_EQ(all.size(), 3u) << "step " << step;
    EXPECT_EQ(all[1].declare().name(), "w");
  }
}

TEST(ControlCodec, TooLongAMessageIsAnErrorBeforeItArrives) {
  std::vector<uint8_t> bytes(4);
  ByteWriter(bytes).Varint(kMaxControlMessageBytes + 1);
  ControlReader reader;
  const auto messages = reader.Append(bytes);
  ASSERT_FALSE(messages.ok());
  EXPECT_EQ(messages.status().code(), StatusCode::kProtocolViolation);
  EXPECT_NE(messages.status().message().find("65537"), std::string::npos);
  EXPECT_FALSE(reader.Append({}).ok()) << "the stream stays broken";
}

TEST(ControlCodec, TheLongestMessageIsReadAndOneByteMoreIsNot) {
  const auto padded = [](size_t length) {
    std::string body;
    SomeJoin().SerializeToString(&body);
    body += "\xc2\x3e";  // bytes in the unknown field 1000, as many as are left
    const size_t filling = length - body.size() - 4;
    std::vector<uint8_t> size(4);
    for (size_t i = 0; i < 4; ++i)
      size[i] = static_cast<uint8_t>(filling >> 7 * i & 0x7f) | (i < 3 ? 0x80 : 0);
    body.append(size.begin(), size.end()).append(filling, 'x');
    std::vector<uint8_t> bytes(VarintSize(body.size()));
    ByteWriter(bytes).Varint(body.size());
    bytes.insert(bytes.end(), body.begin(), body.end());
    return bytes;
  };
  const auto longest = ControlReader().Append(padded(kMaxControlMessageBytes));
  ASSERT_TRUE(longest.ok()) << longest.status().ToString();
  EXPECT_EQ(longest->size(), 1u);
  EXPECT_EQ(ControlReader().Append(padded(kMaxControlMessageBytes + 1)).status().code(),
            StatusCode::kProtocolViolation);
}

// A field of a later version may be a message; one that nests without end is an attack on the parser's stack.
TEST(ControlCodec, UnknownFieldsMayNestOnlySoDeep) {
  const auto nested = [](int depth) {
    std::string body;
    SomeJoin().SerializeToString(&body);
    for (int i = 0; i < depth; ++i) body += "\xc3\x3e";  // group 1000 begins
    for (int i = 0; i < depth; ++i) body += "\xc4\x3e";  // ... and ends
    std::vector<uint8_t> bytes(VarintSize(body.size()));
    ByteWriter(bytes).Varint(body.size());
    bytes.insert(bytes.end(), body.begin(), body.end());
    return ControlReader().Append(bytes);
  };
  EXPECT_TRUE(nested(kMaxControlDepth).ok());
  for (const int depth : {kMaxControlDepth + 1, 100, 10'000}) {
    EXPECT_EQ(nested(depth).status().code(), StatusCode::kProtocolViolation) << depth;
  }
}

TEST(ControlCodec, WhatServersSayOfEachOtherIsInRange) {
  ControlMessage message;
  control::ServerJoin& join = *message.mutable_server_join();
  join.set_job("mnist");
  EXPECT_EQ(RefusedFor(message), "server_join.address is empty");
  join.set_address(":7700");
  EXPECT_EQ(RefusedFor(message), "accepted") << "without a place";
  join.set_map_epoch(1);
  EXPECT_EQ(RefusedFor(message), "server_join.server is not in 1..servers-1");
  join.set_server(1);
  join.set_servers(2);
  EXPECT_EQ(RefusedFor(message), "accepted");
  join.set_servers(65);
  EXPECT_EQ(RefusedFor(message), "server_join.servers is above 64");

  control::ShardMap& map = *message.mutable_shard_map();
  EXPECT_EQ(RefusedFor(message), "shard_map.epoch is zero");
  map.set_epoch(1);
  EXPECT_EQ(RefusedFor(message), "shard_map.servers are not 1..64");
  map.add_servers("");
  EXPECT_EQ(RefusedFor(message), "accepted");
  map.add_servers("ams\n");
  EXPECT_EQ(RefusedFor(message), "shard_map.servers has control characters");
  map.set_servers(1, "ams.example:7700");
  for (int i = 0; i < 63; ++i) map.add_servers("x:1");
  EXPECT_EQ(RefusedFor(message), "shard_map.servers are not 1..64");
  EncodeJobSpec(JobSpec(), message.mutable_welcome()->mutable_job_spec());
  EXPECT_EQ(RefusedFor(message), "accepted");
  message.mutable_welcome()->mutable_shard_map();
  EXPECT_EQ(RefusedFor(message), "shard_map.epoch is zero");

  control::ServerWelcome& welcome = *message.mutable_server_welcome();
  EncodeJobSpec(JobSpec(), welcome.mutable_job_spec());
  EXPECT_EQ(RefusedFor(message), "server_welcome.workers is not in 1..65536");
  welcome.set_workers(4);
  EXPECT_EQ(RefusedFor(message), "server_welcome.min_workers is not in 1..workers");
  welcome.set_min_workers(3);
  for (const uint32_t start : {2u, 5u}) {
    welcome.set_start_workers(start);
    EXPECT_EQ(RefusedFor(message), "server_welcome.start_workers is not in min_workers..workers");
  }
  welcome.set_start_workers(3);
  EXPECT_EQ(RefusedFor(message), "server_welcome.map_epoch is zero");
  welcome.set_map_epoch(1);
  EXPECT_EQ(RefusedFor(message), "server_welcome.server is not in 1..servers-1");
  welcome.set_server(1);
  welcome.set_servers(2);
  EXPECT_EQ(RefusedFor(message), "accepted");

  message = SomeJoin();
  message.mutable_join()->set_server(64);
  EXPECT_EQ(RefusedFor(message), "join.server is not below 64");
}

TEST(ControlCodec, AMembershipHasOneBitForEachRank) {
  ControlMessage message;
  control::Membership& membership = *message.mutable_membership();
  EXPECT_EQ(RefusedFor(message), "membership.epoch is zero");
  membership.set_epoch(1);
  for (const uint32_t workers : {0u, 65537u}) {
    membership.set_workers(workers);
    EXPECT_EQ(RefusedFor(message), "membership.workers is not in 1..65536");
  }
  membership.set_workers(9);
  for (const char* joined : {"", "\xff", "\xff\x01\x01"}) {
    membership.set_joined(joined);
    EXPECT_EQ(RefusedFor(message), "membership.joined has not one bit for each worker");
  }
  membership.set_joined("\xff\x02");
  EXPECT_EQ(RefusedFor(message), "membership.joined has ranks above workers");
  membership.set_joined("\xff\x01");
  EXPECT_EQ(RefusedFor(message), "accepted");
  membership.set_workers(8);
  membership.set_joined("\x80");
  EXPECT_EQ(RefusedFor(message), "accepted");
}

TEST(ControlCodec, EveryFieldOutOfRangeIsNamed) {
  EXPECT_EQ(RefusedFor(SomeJoin()), "accepted");
  ControlMessage message = SomeJoin();
  message.mutable_join()->set_rank(4);
  EXPECT_EQ(RefusedFor(message), "join.rank is not below world_size");
  message = SomeJoin();
  message.mutable_join()->set_world_size(0);
  EXPECT_EQ(RefusedFor(message), "join.world_size is not in 1..65536");
  for (float weight : {0.0f, -1.0f, 1e-44f, 3e38f, std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()}) {
    message = SomeJoin();
    message.mutable_join()->set_weight(weight);
    EXPECT_EQ(RefusedFor(message), "join.weight is not in 1e-6..1e9");
  }
  message = SomeJoin();
  message.mutable_join()->clear_job();
  EXPECT_EQ(RefusedFor(message), "join.job is empty");
  EXPECT_EQ(RefusedFor(SomeDeclare(std::string(257, 'x'))), "declare.name is longer than 256 bytes");
  EXPECT_EQ(RefusedFor(SomeDeclare("w\x1b[2J")), "declare.name has control characters");
  message = SomeDeclare("w");
  message.mutable_declare()->set_optimizer("sgd:lr=0.1\n");
  EXPECT_EQ(RefusedFor(message), "declare.optimizer has control characters");
  for (const std::string name : {"a\nb", "\u0085", "\u202e"}) {
    message = SomeJoin();
    message.mutable_join()->set_job(name);
    EXPECT_EQ(RefusedFor(message), "join.job has control characters");
    message = SomeJoin();
    message.mutable_join()->set_site(name);
    EXPECT_EQ(RefusedFor(message), "join.site has control characters");
    message.Clear();
    message.mutable_bench_join()->set_site(name);
    EXPECT_EQ(RefusedFor(message), "bench_join.site has control characters");
    message.Clear();
    message.mutable_barrier()->set_name(name);
    EXPECT_EQ(RefusedFor(message), "barrier.name has control characters");
  }
  message = SomeDeclare("w");
  message.mutable_declare()->set_count(0);
  EXPECT_EQ(RefusedFor(message), "declare.count is not in 1..2^40");
  for (const double share : {0.0, -0.5, 1.5, std::nan("")}) {
    message = SomeDeclare("w");
    message.mutable_declare()->set_topk_share(share);
    EXPECT_EQ(RefusedFor(message), "declare.topk_share is not above 0 and at most 1") << share;
  }
  message.Clear();
  EncodeJobSpec({}, message.mutable_welcome()->mutable_job_spec());
  EXPECT_EQ(RefusedFor(message), "accepted");
  message.mutable_welcome()->mutable_job_spec()->set_close_ratio(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(RefusedFor(message), "welcome.job_spec: close_ratio is nan, but must be in 0..1");
  message.Clear();
  message.mutable_start()->set_symbol_bytes(1000);
  EXPECT_EQ(RefusedFor(message), "start.symbol_bytes is not a positive multiple of 16 below 65536");
  message.Clear();
  message.mutable_leave()->set_code(77);
  EXPECT_EQ(RefusedFor(message), "leave.code is not a status code");
  message.Clear();
  message.mutable_hand_over()->set_phase(control::HandOver::kEnds);
  EXPECT_EQ(RefusedFor(message), "accepted");
  message.mutable_hand_over()->set_phase(control::HandOver::kEnds + 1);
  EXPECT_EQ(RefusedFor(message), "hand_over.phase is unknown");
  for (const uint64_t timeout : {uint64_t{0}, uint64_t{24} * 3600 * 1'000'000'000 + 1, ~uint64_t{0}}) {
    message.Clear();
    message.mutable_hand_over_request()->set_timeout(timeout);
    EXPECT_EQ(RefusedFor(message), "hand_over_request.timeout is not in 1 ns..24 h");
  }
  message.Clear();
  EXPECT_EQ(RefusedFor(message), "control message is empty or of an unknown kind");
}

// Each setting in turn has a value of its own and comes back; the message has no field beside theirs.
TEST(ControlCodec, EverySettingOfAJobTravels) {
  for (const JobSetting& setting : JobSettings()) {
    JobSpec spec;
    for (const char* text : {"16", "0.125", "stale", "layer", "lossy", "trimmed-mean", "true"}) {
      if (setting.Set(text, &spec).ok()) break;
    }
    ASSERT_NE(spec, JobSpec()) << setting.name;
    if (!spec.Validate().ok()) spec.policy = LossPolicy::kZero;  // robust aggregation takes not every policy
    control::JobSpec message;
    EncodeJobSpec(spec, &message);
    const Result<JobSpec> decoded = DecodeJobSpec(message);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, spec) << setting.name;
  }
  EXPECT_EQ(control::JobSpec::descriptor()->field_count(), static_cast<int>(JobSettings().size()));
}

TEST(ControlCodec, SettingsOutOfRangeDoNotArrive) {
  const auto refused = [](auto change) {
    control::JobSpec message;
    EncodeJobSpec({}, &message);
    change(message);
    return !DecodeJobSpec(message).ok();
  };
  EXPECT_FALSE(refused([](control::JobSpec&) {}));
  EXPECT_TRUE(refused([](control::JobSpec& m) { m.set_policy(6); }));
  EXPECT_TRUE(refused([](control::JobSpec& m) { m.set_policy(256); })) << "0 in eight bits";
  EXPECT_TRUE(refused([](control::JobSpec& m) { m.set_fec_k(256 + 20); }));
  EXPECT_TRUE(refused([](control::JobSpec& m) { m.set_idle_timeout(uint64_t{1} << 63); }));
  EXPECT_TRUE(refused([](control::JobSpec& m) { m.set_hash_rounds(0); }));
  EXPECT_TRUE(refused([](control::JobSpec& m) { m.Clear(); })) << "an empty one";
}

TEST(ControlCodec, TextsForPeopleArriveWithoutWhatCommandsATerminal) {
  const std::string sent = "\x1b[2Jgone\n";
  const std::string shown = "\\x1b[2Jgone\\x0a";
  const auto received = [](const ControlMessage& message) {
    ControlReader reader;
    return reader.Append(Framed(message)).value().at(0);
  };
  ControlMessage message;
  message.mutable_refused()->set_code(9);
  message.mutable_refused()->set_message(sent);
  EXPECT_EQ(received(message).refused().message(), shown);
  message.Clear();
  message.mutable_declared()->set_message(sent);
  EXPECT_EQ(received(message).declared().message(), shown);
  message.Clear();
  message.mutable_pull_refused()->set_code(9);
  message.mutable_pull_refused()->set_message(sent);
  EXPECT_EQ(received(message).pull_refused().message(), shown);
  message.Clear();
  message.mutable_leave()->set_message(sent);
  EXPECT_EQ(received(message).leave().message(), shown);
  message.mutable_leave()->set_message(std::string(kMaxTextBytes, '\n'));
  EXPECT_EQ(received(message).leave().message().size(), kMaxTextBytes);
}

TEST(ControlCodec, RandomBytesNeverCrashTheReader) {
  const uint64_t seed = 20240611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  size_t failures = 0;
  for (int i = 0; i < 2000; ++i) {
    ControlReader reader;
    std::vector<uint8_t> bytes = EncodeControlMessage(SomeDeclare("weights"));
    for (int flips = 0; flips < 3; ++flips)
      bytes[random.Below(bytes.size())] ^= static_cast<uint8_t>(random.Next());
    failures += reader.Append(bytes).ok() ? 0 : 1;
  }
  EXPECT_GT(failures, 100u);
}

}  // namespace
}  // namespace longhaul::wire
