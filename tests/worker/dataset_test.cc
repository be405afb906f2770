#include "worker/demo/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace longhaul::worker {
namespace {

using ::testing::HasSubstr;

std::vector<uint8_t> BigEndian(std::initializer_list<uint32_t> words) {
  std::vector<uint8_t> bytes;
  for (uint32_t w : words) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(w >> shift));
  }
  return bytes;
}

std::vector<uint8_t> Images(uint32_t count, uint32_t rows = 28, uint32_t magic = 0x803) {
  std::vector<uint8_t> file = BigEndian({magic, count, rows, 28});
  for (uint32_t i = 0; i < count; ++i) file.insert(file.end(), size_t{rows} * 28, static_cast<uint8_t>(i));
  return file;
}

std::vector<uint8_t> Labels(uint32_t count, uint32_t magic = 0x801) {
  std::vector<uint8_t> file = BigEndian({magic, count});
  for (uint32_t i = 0; i < count; ++i) file.push_back(static_cast<uint8_t>(i % 10));
  return file;
}

// A directory of its own with a small but well-formed test part; tests damage it.
class DatasetFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "longhaul_dataset_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    Write("t10k-images-idx3-ubyte.gz", Images(20));
    Write("t10k-labels-idx1-ubyte.gz", Labels(20));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, const std::vector<uint8_t>& content) {
    gzFile file = gzopen((directory_ + "/" + name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
  }
  Status Load() { return LoadFashionMnist(directory_, DatasetPart::kTest).status(); }

  std::string directory_;
};

TEST_F(DatasetFilesTest, ReadsImagesAndLabels) {
  Result<Dataset> data = LoadFashionMnist(directory_, DatasetPart::kTest);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->size(), 20u);
  EXPECT_EQ(data->labels[13], 3);
  EXPECT_EQ(data->image(13)[0], 13);
}

TEST_F(DatasetFilesTest, NamesTheDebianPackageWhenAFileIsMissing) {
  std::filesystem::remove(directory_ + "/t10k-labels-idx1-ubyte.gz");
  const Status status = Load();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("dataset-fashion-mnist"));
  EXPECT_THAT(status.message(), HasSubstr("t10k-labels"));
}

TEST_F(DatasetFilesTest, RefusesATruncatedArchive) {
  const std::string path = directory_ + "/t10k-images-idx3-ubyte.gz";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const Status status = Load();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("truncated"));
}

TEST_F(DatasetFilesTest, RefusesFewerPixelsThanTheHeaderPromises) {
  std::vector<uint8_t> images = Images(20);
  images.pop_back();
  Write("t10k-images-idx3-ubyte.gz", images);
  const Status status = Load();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("truncated"));
}

TEST_F(DatasetFilesTest, RefusesAWrongMagicNumber) {
  Write("t10k-images-idx3-ubyte.gz", Images(20, 28, 0x801));
  const Status status = Load();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("0x00000801 instead of 0x00000803"));
}

TEST_F(DatasetFilesTest, RefusesCountsThatDiffer) {
  Write("t10k-labels-idx1-ubyte.gz", Labels(19));
  const Status status = Load();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("20 images, but 19 labels"));
}

TEST_F(DatasetFilesTest, RefusesImagesOfAnotherSize) {
  Write("t10k-images-idx3-ubyte.gz", Images(20, 32));
  EXPECT_THAT(Load().message(), HasSubstr("32 x 28"));
}

TEST_F(DatasetFilesTest, RefusesALabelThatIsNoClass) {
  std::vector<uint8_t> labels = Labels(20);
  labels.back() = 10;
  Write("t10k-labels-idx1-ubyte.gz", labels);
  EXPECT_THAT(Load().message(), HasSubstr("label 10 at position 19"));
}

TEST_F(DatasetFilesTest, RefusesAnEmptyFileAndBytesThatAreNoDataset) {
  Write("t10k-images-idx3-ubyte.gz", {});
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
  std::ofstream(directory_ + "/t10k-images-idx3-ubyte.gz") << "hello, this is not gzip at all";
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
}

TEST_F(DatasetFilesTest, RefusesAHeaderThatPromisesTerabytes) {
  Write("t10k-images-idx3-ubyte.gz", BigEndian({0x803, 0xffffffff, 28, 28}));
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
}

TEST(ShardTest, ShardsOfAllRanksAreDisjointAndTogetherComplete) {
  Dataset whole;
  for (uint32_t i = 0; i < 101; ++i) {
    std::vector<uint8_t> image(Dataset::kPixels, static_cast<uint8_t>(i));
    whole.pixels.insert(whole.pixels.end(), image.begin(), image.end());
    whole.labels.push_back(static_cast<uint8_t>(i % 10));
  }
  std::multiset<uint8_t> seen;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const Dataset shard = ShardOf(whole, rank, 4, /*seed=*/7);
    EXPECT_EQ(shard.size(), rank == 0 ? 26u : 25u);
    for (size_t i = 0; i < shard.size(); ++i) {
      EXPECT_EQ(shard.labels[i], shard.image(i)[0] % 10) << "an image must keep its label";
      seen.insert(shard.image(i)[0]);
    }
  }
  EXPECT_EQ(seen.size(), 101u);
  EXPECT_EQ(std::set<uint8_t>(seen.begin(), seen.end()).size(), 101u);
}

TEST(ShardTest, SkewGivesEveryWorkerItsOwnClasses) {
  Dataset whole;
  for (uint32_t i = 0; i < 1000; ++i) {
    whole.pixels.insert(whole.pixels.end(), Dataset::kPixels, static_cast<uint8_t>(i % 251));
    whole.labels.push_back(static_cast<uint8_t>(i % 10));
  }
  for (const double skew : {0.5, 0.9, 1.0}) {
    std::vector<size_t> of_class(10, 0);
    for (uint32_t rank = 0; rank < 5; ++rank) {
      const Dataset shard = ShardOf(whole, rank, 5, 7, skew);
      EXPECT_NEAR(static_cast<double>(shard.size()), 200, 2);
      // Five workers, ten classes: two of them are its own.
      size_t own = 0;
      for (const uint8_t label : shard.labels) {
        own += label / 2 == rank ? 1 : 0;
        ++of_class[label];
      }
      const double expected = skew + (1 - skew) / 5;
      EXPECT_NEAR(static_cast<double>(own) / static_cast<double>(shard.size()), expected, 0.08)
          << "rank " << rank << ", skew " << skew;
    }
    EXPECT_EQ(of_class, std::vector<size_t>(10, 100)) << "no image is lost or given out twice";
  }
  EXPECT_EQ(ShardOf(whole, 1, 4, 7, 0).labels, ShardOf(whole, 1, 4, 7).labels);
}

TEST(ShardTest, TheWeightOfAShardIsItsSizeByTheEvenShare) {
  Dataset shard;
  shard.labels.assign(15, 0);
  EXPECT_EQ(ShardWeight(shard, 60, 4), 1.0f);
  EXPECT_EQ(ShardWeight(shard, 60, 8), 2.0f);
}

TEST(ShardTest, DependsOnTheSeedAlone) {
  Dataset whole;
  whole.pixels.assign(50 * Dataset::kPixels, 0);
  for (uint32_t i = 0; i < 50; ++i) whole.labels.push_back(static_cast<uint8_t>(i % 10));
  EXPECT_EQ(ShardOf(whole, 1, 2, 3).labels, ShardOf(whole, 1, 2, 3).labels);
  EXPECT_NE(ShardOf(whole, 1, 2, 3).labels, ShardOf(whole, 1, 2, 4).labels);
}

}  // namespace
}  // namespace longhaul::worker
