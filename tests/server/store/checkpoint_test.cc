// A job's state on a disk: what is read is what was written, bit for bit, or is refused and the checkpoint
// before is used.
#include "server/store/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "server/store/hashed_file.h"
#include "server/store/safetensors.h"
#include "tests/server/store/faulty_files.h"

namespace longhaul::server::store {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kFiles[] = {Manifest::kParameters, Manifest::kOptimizer, Manifest::kFileName};

std::shared_ptr<ZeroedArray<float>> Random(uint64_t count, uint32_t seed) {
  auto values = std::make_shared<ZeroedArray<float>>(count);
  std::mt19937 bits(seed);
  for (float& value : values->span())
    value = std::bit_cast<float>(static_cast<uint32_t>(bits()));  // also NaN
  return values;
}

TensorImage MakeTensor(const std::string& name, uint64_t count, const std::string& optimizer, uint64_t rounds,
                       uint32_t seed) {
  TensorImage tensor{.name = name,
                     .count = count,
                     .optimizer = optimizer,
                     .rounds = rounds,
                     .shift_epoch = seed % 5,
                     .values = Random(count, seed)};
  for (const std::string& state : codec::StateNames(*codec::ParseOptimizer(tensor.optimizer)))
    tensor.state.push_back({state, Random(count, ++seed)});
  return tensor;
}

JobImage MakeImage(uint64_t rounds, uint32_t seed) {
  JobImage image{.rounds = rounds, .tensors = {}};
  image.tensors.push_back(MakeTensor("layer1.weight", 1000, "adam:lr=0.001", rounds, seed + 10));
  image.tensors.push_back(MakeTensor("b", 1, "sgd:lr=0.1", rounds, seed + 20));
  image.tensors.push_back(
      MakeTensor("\xc3\xa9t\xc3\xa9 \"x\"", 33, "sgd:lr=0.1,momentum=0.9", rounds - 1, seed + 30));
  image.tensors.push_back(MakeTensor("mean", 5, "aggregate", rounds, seed + 40));
  return image;
}

bool SameBits(const ZeroedArray<float>& a, const ZeroedArray<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// The image, and nothing else.
void ExpectIs(const JobImage& loaded, const JobImage& image) {
  EXPECT_EQ(loaded.rounds, image.rounds);
  ASSERT_EQ(loaded.tensors.size(), image.tensors.size());
  for (size_t i = 0; i < image.tensors.size(); ++i) {
    const TensorImage &a = loaded.tensors[i], &b = image.tensors[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.count, b.count);
    EXPECT_EQ(a.optimizer, b.optimizer);
    EXPECT_EQ(a.rounds, b.rounds);
    EXPECT_EQ(a.shift_epoch, b.shift_epoch);
    EXPECT_TRUE(SameBits(*a.values, *b.values)) << a.name;
    ASSERT_EQ(a.state.size(), b.state.size()) << a.name;
    for (size_t s = 0; s < a.state.size(); ++s) {
      EXPECT_EQ(a.state[s].name, b.state[s].name);
      EXPECT_TRUE(SameBits(*a.state[s].values, *b.state[s].values)) << a.name << " " << a.state[s].name;
    }
  }
}

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void Write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct Checkpoints : testing::Test {
  Checkpoints() {
    std::string name = (fs::temp_directory_path() / "longhaul_store_XXXXXX").string();
    root = ::mkdtemp(name.data());
    directory = root + "/ck";
  }
  ~Checkpoints() override { fs::remove_all(root); }

  CheckpointWriter Open(size_t keep = 3, Files& files = SystemFiles()) {
    auto writer = CheckpointWriter::Open(&files, directory, keep);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    return *std::move(writer);
  }
  static Result<Manifest> WriteTo(CheckpointWriter& writer, const JobImage& image) {
    return writer.Write(
        image,
        {.job = "resnet", .settings = R"({"policy":"residual","x":0.1})", .written = "2026-11-25T12:00:00Z"});
  }
  // Checkpoints 1 (round 10) and 2 (round 20).
  void WriteTwo() {
    CheckpointWriter writer = Open();
    ASSERT_TRUE(WriteTo(writer, first).ok());
    ASSERT_TRUE(WriteTo(writer, second).ok());
  }
  std::string Path(int generation) const {
    return directory + "/checkpoint-00000000000" + std::to_string(generation);
  }
  NewestCheckpoint Newest() const {
    auto newest = LoadNewestCheckpoint(SystemFiles(), directory);
    EXPECT_TRUE(newest.ok()) << newest.status().ToString();
    return *std::move(newest);
  }
  std::vector<std::string> Names() const { return *SystemFiles().List(directory); }
  // Of `file` in checkpoint 2, with these bytes instead: it is refused, by name, and checkpoint 1 is used.
  void ExpectRefused(const std::string& file, const std::string& bytes, const std::string& what) {
    Write(Path(2) + "/" + file, bytes);
    const auto verified = VerifyCheckpoint(SystemFiles(), Path(2));
    ASSERT_FALSE(verified.ok()) << file << " " << what;
    ASSERT_THAT(verified.status().message(), HasSubstr(file)) << what;
    const NewestCheckpoint newest = Newest();
    ASSERT_TRUE(newest.loaded) << file << " " << what;
    ASSERT_EQ(newest.loaded->path, Path(1));
    ASSERT_EQ(newest.refused.size(), 1u);
    ASSERT_EQ(newest.refused[0].first, Path(2));
    ASSERT_EQ(newest.refused[0].second, verified.status()) << "both read alike";
  }

  std::string root, directory;
  const JobImage first = MakeImage(10, 1);
  const JobImage second = MakeImage(20, 2);
};

TEST_F(Checkpoints, WhatIsLoadedIsWhatWasWrittenBitForBit) {
  WriteTwo();
  const NewestCheckpoint newest = Newest();
  ASSERT_TRUE(newest.loaded);
  EXPECT_THAT(newest.refused, IsEmpty());
  ExpectIs(newest.loaded->image, second);
  EXPECT_EQ(newest.loaded->manifest.generation, 2u);
  EXPECT_EQ(newest.loaded->manifest.job, "resnet");
  EXPECT_EQ(newest.loaded->manifest.settings, R"({"policy":"residual","x":0.1})");
  EXPECT_EQ(newest.loaded->manifest.written, "2026-11-25T12:00:00Z");
  ExpectIs(LoadCheckpoint(SystemFiles(), Path(1))->image, first);
  EXPECT_TRUE(VerifyCheckpoint(SystemFiles(), Path(1)).ok());
}

TEST_F(Checkpoints, ADirectoryThatIsEmptyOrNotThereHasNone) {
  EXPECT_FALSE(Newest().loaded);
  (void)Open();
  EXPECT_FALSE(Newest().loaded);
}

TEST_F(Checkpoints, TheNewestStay) {
  CheckpointWriter writer = Open(2);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(WriteTo(writer, first).ok());
  EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000004", "checkpoint-000000000005", "lock"));
}

TEST_F(Checkpoints, GenerationsGoOnAfterARestart) {
  WriteTwo();
  CheckpointWriter writer = Open();
  EXPECT_EQ(WriteTo(writer, first)->generation, 3u);
}

TEST_F(Checkpoints, OneServerWrites) {
  const CheckpointWriter writer = Open();
  const auto other = CheckpointWriter::Open(&SystemFiles(), directory, 3);
  ASSERT_EQ(other.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(other.status().message(), HasSubstr("another server writes checkpoints there"));
}

// Content before its name, and both before the machine may stop.
TEST_F(Checkpoints, EveryFileIsSyncedBeforeTheRenameAndTheDirectoryAfterIt) {
  FaultyFiles files;
  CheckpointWriter writer = Open(3, files);
  files.log.clear();
  ASSERT_TRUE(WriteTo(writer, first).ok());
  std::vector<std::string> kept;
  for (const std::string& line : files.log) {
    if (!line.starts_with("write") && !line.starts_with("create") && !line.starts_with("remove"))
      kept.push_back(line);
  }
  EXPECT_THAT(kept, ElementsAre("mkdir checkpoint-000000000001.part", "sync parameters.safetensors",
                                "sync optimizer.safetensors", "sync manifest.json",
                                "syncdir checkpoint-000000000001.part", "rename checkpoint-000000000001",
                                "syncdir ck"));
}

TEST_F(Checkpoints, AfterAnyCallThatFailsTheOneBeforeIsThereAndTheNextOneIsWritten) {
  size_t faults = 0;
  for (size_t n = 0;; ++n) {
    fs::remove_all(directory);
    FaultyFiles files;
    CheckpointWriter writer = Open(3, files);
    ASSERT_TRUE(WriteTo(writer, first).ok());
    files.FailAt(n, FaultyFiles::Fault::kFails);
    const auto written = WriteTo(writer, second);
    if (!files.failed()) break;
    ++faults;
    const NewestCheckpoint newest = Newest();
    ASSERT_TRUE(newest.loaded) << "call " << n;
    EXPECT_THAT(newest.refused, IsEmpty()) << "call " << n;
    const bool renamed = fs::exists(Path(2));
    ExpectIs(newest.loaded->image, renamed ? second : first);
    if (!written.ok()) {
      EXPECT_EQ(written.status().code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(written.status().message(), HasSubstr("No space left on device"));
    }
    files.FailAt(0, FaultyFiles::Fault::kNone);
    ASSERT_TRUE(WriteTo(writer, second).ok()) << "call " << n;
    ExpectIs(Newest().loaded->image, second);
    for (const std::string& name : Names()) EXPECT_FALSE(name.ends_with(".part")) << name << ", call " << n;
  }
  EXPECT_GT(faults, 15u) << "calls that can fail";
}

TEST_F(Checkpoints, WhereverTheMachineStopsThereIsAWholeCheckpoint) {
  size_t stops = 0;
  for (size_t n = 0;; ++n) {
    fs::remove_all(directory);
    FaultyFiles files;
    bool stopped = false;
    {
      CheckpointWriter writer = Open(1, files);
      ASSERT_TRUE(WriteTo(writer, first).ok());
      files.FailAt(n, FaultyFiles::Fault::kDies);
      (void)WriteTo(writer, second);
      stopped = files.failed();
    }
    const NewestCheckpoint newest = Newest();
    ASSERT_TRUE(newest.loaded) << "call " << n;
    EXPECT_THAT(newest.refused, IsEmpty()) << "call " << n;
    ExpectIs(newest.loaded->image, newest.loaded->manifest.generation == 2 ? second : first);
    {
      CheckpointWriter again = Open(1);
      for (const std::string& name : Names()) EXPECT_FALSE(name.ends_with(".part")) << name << ", call " << n;
      ASSERT_TRUE(WriteTo(again, first).ok());
    }
    EXPECT_EQ(Names().size(), 2u) << "one, and the lock";
    if (!stopped) break;
    ++stops;
  }
  EXPECT_GT(stops, 15u);
}

TEST_F(Checkpoints, AFileThatEndsTooEarlyOrTooLateIsRefused) {
  WriteTwo();
  for (const std::string file : kFiles) {
    const std::string good = Read(Path(2) + "/" + file);
    const size_t step = 1 + good.size() / 257;  // a prime: also offsets within values and texts
    for (size_t length = 0; length < good.size(); length += step)
      ASSERT_NO_FATAL_FAILURE(
          ExpectRefused(file, good.substr(0, length), "cut at " + std::to_string(length)));
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(file, good.substr(0, good.size() - 1), "without its last byte"));
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(file, good + '\0', "longer"));
    Write(Path(2) + "/" + file, good);
    fs::remove(Path(2) + "/" + file);
    EXPECT_EQ(Newest().loaded->path, Path(1)) << "without " << file;
    Write(Path(2) + "/" + file, good);
    EXPECT_EQ(Newest().loaded->path, Path(2));
  }
}

TEST_F(Checkpoints, AFlippedBitIsRefused) {
  WriteTwo();
  std::mt19937 random(7);
  for (const std::string file : kFiles) {
    const std::string good = Read(Path(2) + "/" + file);
    const size_t step = file == Manifest::kFileName ? 1 : 1 + good.size() / 400;
    for (size_t at = 0; at < good.size(); at += step) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
      ASSERT_NO_FATAL_FAILURE(ExpectRefused(file, bad, "flipped at " + std::to_string(at)));
    }
    Write(Path(2) + "/" + file, good);
  }
}

// Values of another checkpoint of the same job, whole in themselves.
TEST_F(Checkpoints, AFileOfAnotherCheckpointIsRefused) {
  WriteTwo();
  for (const std::string file : {Manifest::kParameters, Manifest::kOptimizer}) {
    const std::string good = Read(Path(2) + "/" + file);
    ASSERT_NO_FATAL_FAILURE(ExpectRefused(file, Read(Path(1) + "/" + file), "of another"));
    Write(Path(2) + "/" + file, good);
  }
}

// A forged manifest, with hashes that fit: names and shapes are compared all the same, before memory is
// taken.
TEST_F(Checkpoints, AManifestThatSaysOtherShapesIsRefused) {
  WriteTwo();
  const auto manifest = DecodeManifest(Read(Path(2) + "/" + Manifest::kFileName));
  ASSERT_TRUE(manifest.ok());
  const auto refuse = [&](auto change) {
    Manifest forged = *manifest;
    change(forged);
    Write(Path(2) + "/" + Manifest::kFileName, *EncodeManifest(forged));
    const auto loaded = LoadCheckpoint(SystemFiles(), Path(2));
    EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(VerifyCheckpoint(SystemFiles(), Path(2)).status(), loaded.status());
    return loaded.status().message();
  };
  EXPECT_THAT(refuse([](Manifest& m) { m.tensors[0].count = uint64_t{1} << 60; }),
              HasSubstr("other tensors"));
  EXPECT_THAT(refuse([](Manifest& m) { m.tensors[1].name = "c"; }), HasSubstr("other tensors"));
  EXPECT_THAT(refuse([](Manifest& m) { m.tensors.pop_back(); }), HasSubstr("other tensors"));
  EXPECT_THAT(refuse([](Manifest& m) { std::swap(m.tensors[0], m.tensors[1]); }), HasSubstr("other tensors"));
  EXPECT_THAT(refuse([](Manifest& m) { m.tensors[2].optimizer = "adam:lr=1"; }), HasSubstr("has no state"));
  EXPECT_THAT(refuse([](Manifest& m) { m.tensors[2].optimizer = "adam:lr=none"; }),
              HasSubstr("has no state"));
  EXPECT_THAT(refuse([](Manifest& m) {
                m.tensors[2].optimizer = "of_a_plug_in:lr=1";
                m.tensors[2].state.emplace_back("no.name");
              }),
              HasSubstr("has no state"));
  EXPECT_THAT(refuse([](Manifest& m) { m.parameters.bytes -= 4; }), HasSubstr("its manifest says"));
  EXPECT_THAT(refuse([](Manifest& m) { m.optimizer.sha256[0] ^= 1; }), HasSubstr("is damaged"));
}

TEST_F(Checkpoints, NoneThatIsGoodIsNoneWithAllOfThemNamed) {
  WriteTwo();
  Write(Path(1) + "/" + Manifest::kFileName, "{}");
  fs::remove(Path(2) + "/" + Manifest::kFileName);
  const NewestCheckpoint newest = Newest();
  EXPECT_FALSE(newest.loaded);
  ASSERT_EQ(newest.refused.size(), 2u);
  EXPECT_EQ(newest.refused[0].first, Path(2));
  EXPECT_EQ(newest.refused[1].first, Path(1));
}

TEST_F(Checkpoints, ATensorThatTheFormatCannotNameIsAnErrorAndNoCheckpoint) {
  CheckpointWriter writer = Open();
  JobImage image = first;
  image.tensors[0].name = "__metadata__";
  EXPECT_EQ(WriteTo(writer, image).status().code(), StatusCode::kInvalidArgument);
  image.tensors[0].name = "\xff";
  EXPECT_EQ(WriteTo(writer, image).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Names(), ElementsAre("lock"));
}

// What of a file the reader of another language sees: name, shape, hash of the values.
std::vector<std::string> PythonReads(const std::string& path) {
  const std::string command =
      "python3 " LONGHAUL_SOURCE_DIR "/tests/server/store/read_safetensors.py '" + path + "'";
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::vector<std::string> lines;
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr)
    lines.emplace_back(line.data(), std::strlen(line.data()) - 1);
  EXPECT_EQ(::pclose(pipe), 0) << path;
  return lines;
}

std::string Line(const std::string& name, const ZeroedArray<float>& values) {
  return name + " [" + std::to_string(values.size()) + "] " +
         Sha256Of({reinterpret_cast<const char*>(values.data()), values.bytes()});
}

TEST_F(Checkpoints, AnIndependentReaderSeesTheSame) {
  WriteTwo();
  std::vector<std::string> parameters, optimizer;
  for (const TensorImage& tensor : second.tensors) {
    parameters.push_back(Line(tensor.name, *tensor.values));
    for (const auto& state : tensor.state)
      optimizer.push_back(Line(state.name + "." + tensor.name, *state.values));
  }
  EXPECT_EQ(PythonReads(Path(2) + "/" + Manifest::kParameters), parameters);
  EXPECT_EQ(PythonReads(Path(2) + "/" + Manifest::kOptimizer), optimizer);

  const std::string out = root + "/model.safetensors";
  ASSERT_TRUE(ExportCheckpoint(SystemFiles(), Path(2), out, false).ok());
  EXPECT_EQ(PythonReads(out), parameters);
  EXPECT_EQ(ExportCheckpoint(SystemFiles(), Path(2), out, false).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(PythonReads(out), parameters) << "it was left as it is";
  const std::string both = root + "/both.safetensors";
  ASSERT_TRUE(ExportCheckpoint(SystemFiles(), Path(2), both, true).ok());
  parameters.insert(parameters.end(), optimizer.begin(), optimizer.end());
  EXPECT_EQ(PythonReads(both), parameters);
}

// A real disk that is full, and one that is mounted read-only: a tmpfs of 1 MiB.
TEST_F(Checkpoints, AFullDiskAndAReadOnlyOneLeaveTheLastCheckpoint) {
  const std::string disk = root + "/disk";
  fs::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "no right to mount";
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{disk};
  directory = disk + "/ck";
  {
    CheckpointWriter writer = Open();
    ASSERT_TRUE(WriteTo(writer, first).ok());
    JobImage large{.rounds = 11, .tensors = {}};
    large.tensors.push_back(MakeTensor("w", 1 << 20, "sgd:lr=1", 11, 3));
    const auto full = WriteTo(writer, large);
    ASSERT_EQ(full.status().code(), StatusCode::kResourceExhausted) << full.status().ToString();
    EXPECT_THAT(full.status().message(), HasSubstr("No space left on device"));
    EXPECT_THAT(Names(), ElementsAre("checkpoint-000000000001", "lock")) << "what was half-done has no space";
    ASSERT_TRUE(WriteTo(writer, second).ok()) << "a small one fits";

    ASSERT_EQ(::mount("none", disk.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0)
        << std::strerror(errno);
    const auto read_only = WriteTo(writer, first);
    ASSERT_EQ(read_only.status().code(), StatusCode::kPermissionDenied) << read_only.status().ToString();
    EXPECT_THAT(read_only.status().message(), HasSubstr("Read-only file system"));
  }
  ExpectIs(Newest().loaded->image, second);
  EXPECT_EQ(CheckpointWriter::Open(&SystemFiles(), directory, 3).status().code(),
            StatusCode::kPermissionDenied)
      << "found out at the start";
}

}  // namespace
}  // namespace longhaul::server::store
