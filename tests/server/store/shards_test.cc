// A job's checkpoints for another number of servers: no bit of it changes, and what is not whole is refused.
//
//   one server --> three --> two --> one
#include "server/store/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/placement.h"
#include "server/store/checkpoint.h"
#include "server/store/redo_log.h"

namespace longhaul::server::store {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TensorImage MakeTensor(const std::string& name, uint64_t count, const std::string& optimizer,
                       uint64_t rounds) {
  TensorImage tensor{
      .name = name, .count = count, .optimizer = optimizer, .rounds = rounds, .shift_epoch = 3};
  float next = static_cast<float>(name.size());
  const auto array = [&] {
    auto values = std::make_shared<ZeroedArray<float>>(count);
    for (float& value : values->span()) value = next += 0.25f;
    return values;
  };
  tensor.values = array();
  for (const std::string& state : codec::StateNames(*codec::ParseOptimizer(tensor.optimizer)))
    tensor.state.push_back({state, array()});
  return tensor;
}

JobImage MakeImage(uint64_t rounds) {
  JobImage image{.rounds = rounds, .tensors = {}};
  image.tensors.push_back(MakeTensor("large", 100'000, "adam:lr=0.001", rounds));
  image.tensors.push_back(MakeTensor("mid", 2 * kSmallestShard + 5, "sgd:lr=0.1,momentum=0.9", rounds - 1));
  for (const char* name : {"a", "b", "c", "d", "e", "f"})
    image.tensors.push_back(MakeTensor(name, 10, "sgd:lr=0.1", rounds));
  return image;
}

void ExpectSame(const JobImage& a, const JobImage& b) {
  EXPECT_EQ(a.rounds, b.rounds);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const TensorImage& tensor : a.tensors) {
    const auto other = std::ranges::find(b.tensors, tensor.name, &TensorImage::name);
    ASSERT_NE(other, b.tensors.end()) << tensor.name;
    EXPECT_EQ(tensor.count, other->count);
    EXPECT_EQ(tensor.rounds, other->rounds);
    EXPECT_EQ(tensor.shift_epoch, other->shift_epoch);
    EXPECT_EQ(tensor.optimizer, other->optimizer);
    EXPECT_TRUE(std::ranges::equal(tensor.values->span(), other->values->span())) << tensor.name;
    ASSERT_EQ(tensor.state.size(), other->state.size());
    for (size_t i = 0; i < tensor.state.size(); ++i) {
      EXPECT_EQ(tensor.state[i].name, other->state[i].name);
      EXPECT_TRUE(std::ranges::equal(tensor.state[i].values->span(), other->state[i].values->span()))
          << tensor.name;
    }
  }
}

class ReshardTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/longhaul-reshard-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  // A server's directory with one checkpoint.
  std::string Write(const std::string& name, const JobImage& image, const std::string& job = "job") {
    auto writer = CheckpointWriter::Open(&SystemFiles(), Path(name), 9);
    EXPECT_TRUE(writer.ok() && writer->Write(image, {.job = job, .settings = "{}", .written = "today"}).ok());
    return Path(name);
  }
  std::vector<std::string> WriteThree(const JobImage& image) {
    std::vector<std::string> directories;
    const auto parts = CutInParts(image, 3);
    for (uint32_t server = 0; server < 3; ++server) {
      directories.push_back(Write("s" + std::to_string(server), parts[server]));
      EXPECT_TRUE(WritePlace(SystemFiles(), directories.back(),
                             {.map_epoch = 4, .server = server, .servers = 3, .start = 2})
                      .ok());
    }
    return directories;
  }
  Result<Resharded> To(uint32_t servers, const std::vector<std::string>& directories,
                       const std::string& out = "out") {
    return Reshard(SystemFiles(), {.directories = directories, .servers = servers, .out = Path(out)});
  }
  static JobImage Load(const std::string& directory) {
    auto newest = LoadNewestCheckpoint(SystemFiles(), directory);
    EXPECT_TRUE(newest.ok() && newest->loaded);
    return std::move(newest->loaded->image);
  }

  std::string root_;
};

TEST_F(ReshardTest, ChangesNoBitOnTheWayFromOneToThreeToTwoToOne) {
  const JobImage image = MakeImage(7);
  const auto three = To(3, {Write("one", image)}, "three");
  ASSERT_TRUE(three.ok()) << three.status().ToString();
  EXPECT_EQ(three->map_epoch, 1u);
  EXPECT_EQ(three->rounds, 7u);
  ASSERT_EQ(three->directories.size(), 3u);
  const auto place = ReadPlace(SystemFiles(), three->directories[2]);
  ASSERT_TRUE(place.ok() && *place);
  EXPECT_EQ(**place, (StoredPlace{.map_epoch = 1, .server = 2, .servers = 3}));
  std::vector<std::string> any_order = three->directories;
  std::ranges::reverse(any_order);
  const auto two = To(2, any_order, "two");
  ASSERT_TRUE(two.ok()) << two.status().ToString();
  EXPECT_EQ(two->map_epoch, 2u) << "workers and servers of the old map are refused";
  const auto one = To(1, two->directories, "again");
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  EXPECT_EQ(one->map_epoch, 0u);
  EXPECT_FALSE(*ReadPlace(SystemFiles(), one->directories[0]));
  ExpectSame(Load(one->directories[0]), image);
}

TEST_F(ReshardTest, PutsPartsWhereWorkersLookForThem) {
  const JobImage image = MakeImage(7);
  const auto parts = CutInParts(image, 3);
  const TensorImage& large = image.tensors.front();
  for (const Shard& shard : PlaceTensor("large", large.count, 3)) {
    const auto& held = parts[shard.server].tensors;
    const auto part = std::ranges::find(held, "large", &TensorImage::name);
    ASSERT_NE(part, held.end());
    EXPECT_TRUE(
        std::ranges::equal(part->values->span(), large.values->span().subspan(shard.first, shard.count)));
    EXPECT_TRUE(std::ranges::equal(part->state[1].values->span(),
                                   large.state[1].values->span().subspan(shard.first, shard.count)));
  }
}

TEST_F(ReshardTest, TakesTheNewestRoundThatAllHave) {
  const JobImage old = MakeImage(7);
  const auto directories = WriteThree(old);
  Write("s0", CutInParts(MakeImage(9), 3)[0]);  // two servers were killed before they had this one
  const auto one = To(1, directories);
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  EXPECT_EQ(one->rounds, 7u);
  ExpectSame(Load(one->directories[0]), old);
}

TEST_F(ReshardTest, RefusesWhatIsNotAllOfOneJobByName) {
  const auto three = WriteThree(MakeImage(7));
  EXPECT_THAT(To(1, {three[0], three[1]}).status().message(),
              HasSubstr("/s0 is of server 1 of 3, and there are 2 directories"));
  EXPECT_THAT(To(1, {three[0], three[1], three[1]}).status().message(),
              HasSubstr("are both of server 2 of 3"));
  ASSERT_TRUE(WritePlace(SystemFiles(), three[1], {.map_epoch = 5, .server = 1, .servers = 3}).ok());
  EXPECT_THAT(To(1, three).status().message(), HasSubstr("/s1 is of another epoch of the shard map"));
  ASSERT_TRUE(WritePlace(SystemFiles(), three[1], {.map_epoch = 4, .server = 1, .servers = 3}).ok());
  fs::remove_all(three[1] + "/checkpoint-000000000001");
  EXPECT_THAT(To(1, three).status().message(), HasSubstr("no checkpoint of one round in common"));
  Write("s1", CutInParts(MakeImage(7), 3)[1], "other");
  EXPECT_THAT(To(1, three).status().message(), HasSubstr("is of another job"));
  EXPECT_FALSE(fs::exists(Path("out")));
}

TEST_F(ReshardTest, RefusesAPartThatIsMissingOrOfAnotherRoundOrOptimizer) {
  const JobImage image = MakeImage(7);
  auto parts = CutInParts(image, 3);
  const uint32_t second = PlaceTensor("large", 100'000, 3)[1].server;
  const auto large = [&]() -> TensorImage& {
    return *std::ranges::find(parts[second].tensors, "large", &TensorImage::name);
  };
  EXPECT_TRUE(JoinParts(parts).ok());
  large().rounds = 6;
  EXPECT_THAT(JoinParts(parts).status().message(), HasSubstr("\"large\": one part is of round"));
  large().rounds = 7;
  large().optimizer = "sgd:lr=5";
  EXPECT_THAT(JoinParts(parts).status().message(), HasSubstr("\"large\"'s parts have different optimizers"));
  std::erase_if(parts[second].tensors, [](const TensorImage& t) { return t.name == "large"; });
  EXPECT_THAT(JoinParts(parts).status().message(), HasSubstr("\"large\": the part of server"));
}

TEST_F(ReshardTest, RefusesPartsInAnotherOrder) {
  auto parts = CutInParts(MakeImage(7), 3);
  std::swap(parts[0], parts[2]);
  EXPECT_EQ(JoinParts(parts).status().code(), StatusCode::kDataLoss);
}

TEST_F(ReshardTest, WritesOverNothing) {
  const auto three = WriteThree(MakeImage(7));
  fs::create_directory(Path("out"));
  EXPECT_EQ(To(2, three).status().code(), StatusCode::kAlreadyExists);
}

// --- A job that goes on ---

class RegroupTest : public ReshardTest {
 protected:
  // A server's directory with the round log of a job that has that number there.
  std::string WriteLog(const std::string& name, const JobImage& image, uint64_t number,
                       const std::string& settings = "{}", uint16_t symbol_bytes = 1200) {
    fs::create_directory(Path(name));
    auto log = RedoLog::Open(&SystemFiles(), Path(name));
    const ResumedJob run{.number = number, .symbol_bytes = symbol_bytes};
    EXPECT_TRUE(
        log.ok() &&
        log->Begin({.job = "job", .settings = settings, .world_size = 2}, run, /*goes_on=*/false).ok());
    std::vector<RedoLog::Image> tensors;
    for (const TensorImage& tensor : image.tensors)
      tensors.push_back(std::make_shared<const TensorImage>(tensor));
    EXPECT_EQ(log->Append(tensors), Status());
    return Path(name);
  }
  void WriteThreeLogs(const JobImage& image) {
    const auto parts = CutInParts(image, 3);
    for (uint32_t server = 0; server < 3; ++server) {
      three_.push_back(WriteLog("s" + std::to_string(server), parts[server], 100 + server, "{}",
                                static_cast<uint16_t>(1200 - server)));
      EXPECT_TRUE(
          WritePlace(SystemFiles(), three_.back(), {.map_epoch = 4, .server = server, .servers = 3}).ok());
    }
  }
  static RedoLog::Loaded LogIn(const std::string& directory) {
    auto log = RedoLog::Open(&SystemFiles(), directory);
    EXPECT_TRUE(log.ok());
    auto loaded = log->TakeLoaded();
    EXPECT_TRUE(loaded && !loaded->over);
    return loaded ? *std::move(loaded) : RedoLog::Loaded();
  }
  static JobImage OfJob() {
    JobImage image = MakeImage(7);
    for (TensorImage& tensor : image.tensors) {
      tensor.round = tensor.rounds - 3;
      tensor.counted = {{.session = 5, .round = 3, .clock = 4, .chunks = {1}, .replaced = {2, 3}}, {}};
    }
    return image;
  }

  std::vector<std::string> three_;
};

TEST_F(RegroupTest, GoesOnAtTheNextServersAndChangesNoBit) {
  const JobImage image = OfJob();
  WriteThreeLogs(image);
  const auto two = To(2, {three_[1], three_[2], three_[0]});
  ASSERT_TRUE(two.ok()) << two.status().ToString();
  EXPECT_TRUE(two->goes_on);
  EXPECT_EQ(two->rounds, 7u);
  EXPECT_EQ(two->map_epoch, 5u);
  std::vector<JobImage> parts;
  const uint64_t numbers[] = {100, 101, 102};
  for (uint32_t server = 0; server < 2; ++server) {
    RedoLog::Loaded log = LogIn(two->directories[server]);
    EXPECT_EQ(log.run.number, NextJobNumber(JobIdentity(numbers), server));
    EXPECT_EQ(log.run.symbol_bytes, 1198) << "every path carries it";
    EXPECT_EQ(log.about.job, "job");
    EXPECT_EQ(log.about.world_size, 2u);
    for (const TensorImage& tensor : log.tensors) {
      EXPECT_EQ(tensor.round, tensor.rounds - 3) << "rounds count on";
      ASSERT_EQ(tensor.counted.size(), 2u);
      const Counted expected{.session = 5, .round = 3, .clock = 4, .chunks = {}, .replaced = {2, 3}};
      EXPECT_EQ(tensor.counted[0], expected);
    }
    const auto place = ReadPlace(SystemFiles(), two->directories[server]);
    EXPECT_EQ((*place)->ToString(), "server " + std::to_string(server + 1) + " of 2");
    parts.push_back({.rounds = 7, .tensors = std::move(log.tensors)});
  }
  const auto joined = JoinParts(parts);
  ASSERT_TRUE(joined.ok());
  ExpectSame(*joined, image);
  // What there was is as it was: those servers could still go on.
  EXPECT_EQ(LogIn(three_[0]).run.number, 100u);
}

TEST_F(RegroupTest, RefusesServersThatHaveNotHandedTheJobOverTogether) {
  JobImage image = OfJob();
  WriteThreeLogs(image);
  auto parts = CutInParts(image, 3);
  const uint32_t second = PlaceTensor("large", 100'000, 3)[1].server;
  ++std::ranges::find(parts[second].tensors, "large", &TensorImage::name)->round;
  fs::remove_all(three_[second]);
  WriteLog("s" + std::to_string(second), parts[second], 100 + second);
  ASSERT_TRUE(
      WritePlace(SystemFiles(), three_[second], {.map_epoch = 4, .server = second, .servers = 3}).ok());
  const Status apart = To(2, three_).status();
  EXPECT_EQ(apart.code(), StatusCode::kDataLoss);
  EXPECT_THAT(apart.message(), HasSubstr("\"large\": one part is of round"));
  EXPECT_THAT(apart.message(), HasSubstr("longhaul hand-over"));
  EXPECT_FALSE(fs::exists(Path("out")));
}

TEST_F(RegroupTest, RefusesAJobThatIsOverAtSomeOrHasOtherSettingsOrRuns) {
  WriteThreeLogs(OfJob());
  const std::string lock = three_[1] + "/lock";
  {
    const auto running = SystemFiles().Lock(lock);
    ASSERT_TRUE(running.ok());
    EXPECT_EQ(To(2, three_).status().code(), StatusCode::kUnavailable);
  }
  const auto rewrite = [&](const std::string& settings) {
    fs::remove_all(three_[1]);
    WriteLog("s1", CutInParts(OfJob(), 3)[1], 101, settings);
    ASSERT_TRUE(WritePlace(SystemFiles(), three_[1], {.map_epoch = 4, .server = 1, .servers = 3}).ok());
  };
  rewrite("{\"policy\":\"shift\"}");
  EXPECT_THAT(To(2, three_).status().message(), HasSubstr("/s1 is of another job than that in"));
  rewrite("{}");
  {
    auto log = RedoLog::Open(&SystemFiles(), three_[1]);
    ASSERT_TRUE(log.ok() && log->Begin({.job = "job"}, {.number = 101}, true).ok() && log->End().ok());
  }
  EXPECT_THAT(To(2, three_).status().message(), HasSubstr("/s0, and is over by"));
  EXPECT_FALSE(fs::exists(Path("out")));
}

TEST_F(ReshardTest, APlaceThatIsDamagedIsNoPlace) {
  const std::string directory = Write("s", MakeImage(7));
  for (const char* text : {"", "{}", "[1]", "{\"map_epoch\":1,\"server\":3,\"servers\":3,\"start\":1}",
                           "{\"map_epoch\":0,\"server\":0,\"servers\":3,\"start\":1}",
                           "{\"map_epoch\":1,\"server\":-1,\"servers\":3,\"start\":1}"}) {
    FILE* file = std::fopen((directory + "/place.json").c_str(), "w");
    std::fputs(text, file);
    std::fclose(file);
    EXPECT_EQ(ReadPlace(SystemFiles(), directory).status().code(), StatusCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace longhaul::server::store
