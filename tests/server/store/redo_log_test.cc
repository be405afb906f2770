// The round log: what was synced is there, whatever was being written when the server died.
#include "server/store/redo_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/crc32c.h"
#include "tests/server/store/faulty_files.h"

namespace longhaul::server::store {
namespace {

namespace fs = std::filesystem;

using ByName = std::map<std::string, uint64_t>;  // the round of each tensor

const RedoLog::About kAbout{.job = "j", .settings = "{\"a\":1}", .world_size = 2};
const ResumedJob kRun{.number = 77, .symbol_bytes = 1392};

RedoLog::Image Image(const std::string& name, uint64_t round,
                     const std::string& optimizer = "sgd:lr=1,momentum=0.5", uint64_t count = 5) {
  TensorImage image{.name = name,
                    .count = count,
                    .optimizer = optimizer,
                    .rounds = 100 + round,
                    .round = round,
                    .shift_epoch = 3};
  const auto array = [&](float first) {
    auto values = std::make_shared<ZeroedArray<float>>(count);
    for (float& value : values->span()) value = first++;
    return values;
  };
  image.values = array(static_cast<float>(round));
  for (const std::string& state : codec::StateNames(*codec::ParseOptimizer(image.optimizer)))
    image.state.push_back({state, array(static_cast<float>(1000 + round))});
  image.counted = {{.session = 9, .round = round, .chunks = {0xa5, 1}, .replaced = {4, 8}}, {}};
  return std::make_shared<TensorImage>(std::move(image));
}

struct RedoLogTest : testing::Test {
  RedoLogTest() {
    char pattern[] = "/tmp/longhaul-redo-XXXXXX";
    directory = ::mkdtemp(pattern);
  }
  ~RedoLogTest() override { fs::remove_all(directory); }

  RedoLog Open() { return *RedoLog::Open(&files, directory); }
  RedoLog Begun(bool goes_on = false) {
    RedoLog log = Open();
    EXPECT_TRUE(log.Begin(kAbout, kRun, goes_on).ok());
    return log;
  }
  static Status Append(RedoLog& log, const RedoLog::Image& image) { return log.Append({&image, 1}); }
  std::vector<std::string> Names() {
    std::vector<std::string> names = *SystemFiles().List(directory);
    return names;
  }
  // By name: the round of what is loaded.
  ByName Rounds() {
    ByName rounds;
    RedoLog log = Open();
    if (auto loaded = log.TakeLoaded()) {
      for (const TensorImage& tensor : loaded->tensors) rounds[tensor.name] = tensor.round;
    }
    return rounds;
  }

  FaultyFiles files;
  std::string directory;
};

TEST_F(RedoLogTest, GivesBackTheLastStateOfEachTensorAndWhoseItIs) {
  {
    RedoLog log = Begun();
    for (uint64_t round = 0; round < 4; ++round) {
      const RedoLog::Image both[] = {Image("w", round), Image("b", round, "aggregate", 1)};
      ASSERT_TRUE(log.Append(both).ok());
    }
    ASSERT_TRUE(Append(log, Image("w", 4)).ok());
  }
  RedoLog log = Open();
  const auto loaded = log.TakeLoaded();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->about.job, "j");
  EXPECT_EQ(loaded->about.settings, kAbout.settings);
  EXPECT_EQ(loaded->about.world_size, 2u);
  EXPECT_EQ(loaded->run.number, 77u);
  EXPECT_EQ(loaded->run.symbol_bytes, 1392);
  EXPECT_FALSE(loaded->over);
  EXPECT_TRUE(loaded->cut.empty());
  ASSERT_EQ(loaded->tensors.size(), 2u);
  const TensorImage& w = loaded->tensors[1];
  const RedoLog::Image written = Image("w", 4);
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.rounds, 104u);
  EXPECT_EQ(w.round, 4u);
  EXPECT_EQ(w.shift_epoch, 3u);
  EXPECT_EQ(w.optimizer, written->optimizer);
  EXPECT_EQ(w.counted, written->counted);
  EXPECT_EQ(std::memcmp(w.values->data(), written->values->data(), w.values->bytes()), 0);
  ASSERT_EQ(w.state.size(), 1u);
  EXPECT_EQ(w.state[0].name, "momentum_buffer");
  EXPECT_EQ(std::memcmp(w.state[0].values->data(), written->state[0].values->data(), w.values->bytes()), 0);
  EXPECT_EQ(loaded->tensors[0].round, 3u);
}

// Its records have neither clocks nor replaced sessions. Other fields take their place here, in as many
// bytes.
TEST_F(RedoLogTest, OfAnEarlierVersionIsRead) {
  std::string path;
  {
    RedoLog log = Begun();
    path = directory + "/" + Names().at(0);
    ASSERT_TRUE(Append(log, Image("w", 4)).ok());
  }
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  for (const auto& [field, other] :
       {std::pair("\"clock\"", "\"other\""), std::pair("\"replaced\"", "\"anything\"")}) {
    size_t at = bytes.find(field);
    ASSERT_NE(at, std::string::npos) << field;
    for (; at != std::string::npos; at = bytes.find(field, at)) bytes.replace(at, std::strlen(field), other);
  }
  const size_t record = bytes.rfind("LHROUND1"), end = bytes.size() - sizeof(uint32_t);
  const uint32_t crc = Crc32c({reinterpret_cast<const uint8_t*>(bytes.data()) + record, end - record}, 0);
  std::memcpy(bytes.data() + end, &crc, sizeof crc);
  std::ofstream(path, std::ios::binary) << bytes;
  const auto loaded = Open().TakeLoaded();
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(loaded->cut.empty());
  ASSERT_EQ(loaded->tensors.size(), 1u);
  EXPECT_EQ(loaded->tensors[0].counted.at(0), (Counted{.session = 9, .round = 4, .chunks = {0xa5, 1}}));
}

TEST_F(RedoLogTest, ThatIsCutAnywhereHasTheRecordsBeforeTheCut) {
  RedoLog log = Begun();
  const std::string path = directory + "/" + Names().at(0);
  std::vector<uint64_t> ends;  // of the records
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(Append(log, Image("w", round)).ok());
    ends.push_back(fs::file_size(path));
  }
  for (uint64_t size = ends[2] - 1; size >= ends[0]; --size) {
    fs::resize_file(path, size);
    ASSERT_EQ(Rounds(), (ByName{{"w", size >= ends[1] ? 1u : 0u}})) << size;
  }
}

TEST_F(RedoLogTest, ThatIsDamagedAnywhereIsNotBelievedFromThereOn) {
  RedoLog log = Begun();
  const std::string path = directory + "/" + Names().at(0);
  ASSERT_TRUE(Append(log, Image("w", 0)).ok());
  const uint64_t first = fs::file_size(path);
  ASSERT_TRUE(Append(log, Image("w", 1)).ok());
  ASSERT_TRUE(Append(log, Image("w", 2)).ok());
  const uint64_t last = (fs::file_size(path) - first) / 2 + first;
  for (uint64_t at = first; at < last; ++at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char was = static_cast<char>(file.get());
    const auto put = [&](char value) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put(value);
      file.flush();
    };
    put(static_cast<char>(was ^ 4));
    ASSERT_EQ(Rounds(), (ByName{{"w", 0}})) << at;
    put(was);
  }
}

TEST_F(RedoLogTest, OfAnotherJobReplacesTheOneBeforeWithItsFirstRound) {
  {
    RedoLog log = Begun();
    ASSERT_TRUE(Append(log, Image("w", 5)).ok());
    ASSERT_TRUE(log.End().ok());
  }
  {
    RedoLog log = Open();
    EXPECT_TRUE(log.TakeLoaded()->over);
    ASSERT_TRUE(log.Begin(kAbout, {.number = 78, .symbol_bytes = 1392}, false).ok());
    ASSERT_TRUE(Append(log, Image("v", 0)).ok());
    EXPECT_EQ(Names().size(), 2u) << "until it has a round of its own, the last ones are the job's before";
    ASSERT_TRUE(Append(log, Image("v", 1)).ok());
    EXPECT_EQ(Names().size(), 1u);
  }
  EXPECT_EQ(Rounds(), (ByName{{"v", 1}}));
}

TEST_F(RedoLogTest, GoesOnInAnotherFileAndKeepsWhatOnlyTheOneBeforeHas) {
  {
    RedoLog log = Begun();
    ASSERT_TRUE(Append(log, Image("w", 1)).ok());
    ASSERT_TRUE(Append(log, Image("rare", 1)).ok());
  }
  {
    RedoLog log = Begun(true);
    ASSERT_TRUE(Append(log, Image("w", 2)).ok());
    EXPECT_EQ(Names().size(), 2u);
    EXPECT_EQ(Rounds(), (ByName{{"rare", 1}, {"w", 2}}));
    ASSERT_TRUE(Append(log, Image("rare", 2)).ok());
    EXPECT_EQ(Names().size(), 1u);
  }
  EXPECT_EQ(Rounds(), (ByName{{"rare", 2}, {"w", 2}}));
}

TEST_F(RedoLogTest, IsBounded) {
  RedoLog log = Begun();
  constexpr uint64_t kCount = RedoLog::kFileBytes / 4 / sizeof(float);
  for (uint64_t round = 1; round <= 14; ++round) {
    ASSERT_TRUE(Append(log, Image("w", round, "aggregate", kCount)).ok());
    uint64_t bytes = 0;
    for (const std::string& name : Names()) bytes += fs::file_size(directory + "/" + name);
    EXPECT_LE(bytes, 2 * RedoLog::kFileBytes) << round;
  }
  EXPECT_EQ(Rounds(), (ByName{{"w", 14}}));
}

TEST_F(RedoLogTest, WhoseDiskFailsHasWhatItSaidItHad) {
  for (const auto fault : {FaultyFiles::Fault::kFails, FaultyFiles::Fault::kDies}) {
    bool failed = true;
    for (size_t call = 0; failed; ++call) {
      for (const std::string& name : Names()) fs::remove(directory + "/" + name);
      RedoLog log = Open();
      uint64_t said = 0;
      files.FailAt(call, fault);
      const bool begun = log.Begin(kAbout, kRun, false).ok();
      for (uint64_t round = 1; round <= 3; ++round) {
        if ((begun || fault == FaultyFiles::Fault::kFails) && Append(log, Image("w", round)).ok())
          said = round;
      }
      failed = files.failed();
      files.FailAt(0, FaultyFiles::Fault::kNone);
      if (fault == FaultyFiles::Fault::kFails) {
        ASSERT_TRUE(Append(log, Image("w", 4)).ok()) << "it has failed once: " << call;
        said = 4;
      }
      const auto rounds = Rounds();
      EXPECT_GE(rounds.contains("w") ? rounds.at("w") : 0, said) << call;
    }
  }
}

TEST_F(RedoLogTest, SyncsBeforeItSays) {
  RedoLog log = Begun();
  files.log.clear();
  const RedoLog::Image both[] = {Image("w", 1), Image("b", 1)};
  ASSERT_TRUE(log.Append(both).ok());
  EXPECT_EQ(files.log.back(), "sync rounds-000000000001.log");
  EXPECT_EQ(std::ranges::count(files.log, "sync rounds-000000000001.log"), 1) << "one for all";
}

// Where only the process died, what it had written may be in memory alone: the next one tells workers of it.
TEST_F(RedoLogTest, SyncsWhatItFindsBeforeItIsBelieved) {
  {
    RedoLog log = Begun();
    ASSERT_TRUE(Append(log, Image("w", 1)).ok());
  }
  files.log.clear();
  RedoLog log = Open();
  EXPECT_EQ(files.log, (std::vector<std::string>{"sync rounds-000000000001.log",
                                                 "syncdir " + directory.substr(directory.rfind('/') + 1)}));
  for (size_t call = 0; call < 2; ++call) {
    files.FailAt(call, FaultyFiles::Fault::kFails, {StatusCode::kInternal, "Input/output error"});
    EXPECT_FALSE(RedoLog::Open(&files, directory).ok()) << call;
  }
}

}  // namespace
}  // namespace longhaul::server::store
