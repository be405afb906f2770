#include "worker/demo/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace longhaul::worker {
namespace {

// The train images unpack to 47 MB; anything much larger is not this dataset.
constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr uint32_t kImagesMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr uint32_t kLabelsMagic = 0x00000801;  // unsigned bytes, one dimension

struct CloseGzip {
  void operator()(gzFile_s* file) const { gzclose(file); }
};

Status Damaged(const std::string& name, const std::string& what) {
  return {StatusCode::kDataLoss, name + ": " + what + "; reinstall the Debian package dataset-fashion-mnist"};
}

std::string Hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

Status CheckMagic(uint32_t magic, uint32_t expected, const std::string& name) {
  if (magic == expected) return Status::Ok();
  return Damaged(name, "not the IDX file that belongs here (magic number " + Hex(magic) + " instead of " +
                           Hex(expected) + ")");
}

Status CheckLength(size_t have, size_t want, const std::string& name) {
  if (have == want) return Status::Ok();
  return Damaged(name, (have < want ? "truncated (" : "too long (") + std::to_string(have) +
                           " bytes of data where the header promises " + std::to_string(want) + ")");
}

}  // namespace

Result<std::vector<uint8_t>> ReadGzipFile(const std::string& path, size_t max_bytes) {
  errno = 0;
  std::unique_ptr<gzFile_s, CloseGzip> file(gzopen(path.c_str(), "rb"));
  if (!file) {
    return Status(StatusCode::kNotFound,
                  "cannot open " + path + ": " + std::strerror(errno != 0 ? errno : ENOMEM) +
                      "; install the Debian package dataset-fashion-mnist or say --data DIR");
  }
  std::vector<uint8_t> content;
  std::vector<uint8_t> piece(size_t{1} << 20);
  while (true) {
    const int got = gzread(file.get(), piece.data(), static_cast<unsigned>(piece.size()));
    int code = Z_OK;
    const char* message = gzerror(file.get(), &code);
    // A stream that ends early is Z_BUF_ERROR after the bytes that were there.
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      return Damaged(path, code == Z_BUF_ERROR ? "truncated (the compressed data ends early)" : message);
    }
    if (got == 0) return content;
    content.insert(content.end(), piece.begin(), piece.begin() + got);
    if (content.size() > max_bytes) return Damaged(path, "larger than this dataset can be");
  }
}

Result<std::vector<uint8_t>> ParseIdxImages(ByteSpan file, const std::string& name) {
  ByteReader in(file);
  const uint32_t magic = in.U32();
  const uint64_t count = in.U32();
  const uint32_t rows = in.U32();
  const uint32_t columns = in.U32();
  if (!in.ok()) return Damaged(name, "truncated (no complete header)");
  if (Status s = CheckMagic(magic, kImagesMagic, name); !s.ok()) return s;
  if (rows != 28 || columns != 28) {
    return Damaged(name, "images of " + std::to_string(rows) + " x " + std::to_string(columns) +
                             " pixels instead of 28 x 28");
  }
  if (Status s = CheckLength(in.remaining(), count * Dataset::kPixels, name); !s.ok()) return s;
  const ByteSpan pixels = in.Rest();
  return std::vector<uint8_t>(pixels.begin(), pixels.end());
}

Result<std::vector<uint8_t>> ParseIdxLabels(ByteSpan file, const std::string& name) {
  ByteReader in(file);
  const uint32_t magic = in.U32();
  const uint64_t count = in.U32();
  if (!in.ok()) return Damaged(name, "truncated (no complete header)");
  if (Status s = CheckMagic(magic, kLabelsMagic, name); !s.ok()) return s;
  if (Status s = CheckLength(in.remaining(), count, name); !s.ok()) return s;
  const ByteSpan labels = in.Rest();
  const auto bad =
      std::find_if(labels.begin(), labels.end(), [](uint8_t l) { return l >= Dataset::kClasses; });
  if (bad != labels.end()) {
    return Damaged(name, "label " + std::to_string(*bad) + " at position " +
                             std::to_string(bad - labels.begin()) + " where 0..9 is possible");
  }
  return std::vector<uint8_t>(labels.begin(), labels.end());
}

Result<Dataset> LoadFashionMnist(const std::string& directory, DatasetPart part) {
  const std::string prefix = directory + (part == DatasetPart::kTrain ? "/train" : "/t10k");
  const std::string images_path = prefix + "-images-idx3-ubyte.gz";
  const std::string labels_path = prefix + "-labels-idx1-ubyte.gz";

  Result<std::vector<uint8_t>> images_file = ReadGzipFile(images_path, kMaxFileBytes);
  if (!images_file.ok()) return images_file.status();
  Result<std::vector<uint8_t>> labels_file = ReadGzipFile(labels_path, kMaxFileBytes);
  if (!labels_file.ok()) return labels_file.status();
  Result<std::vector<uint8_t>> pixels = ParseIdxImages(*images_file, images_path);
  if (!pixels.ok()) return pixels.status();
  Result<std::vector<uint8_t>> labels = ParseIdxLabels(*labels_file, labels_path);
  if (!labels.ok()) return labels.status();

  Dataset dataset{*std::move(pixels), *std::move(labels)};
  if (dataset.pixels.size() != dataset.size() * Dataset::kPixels) {
    return Damaged(images_path, std::to_string(dataset.pixels.size() / Dataset::kPixels) + " images, but " +
                                    std::to_string(dataset.size()) + " labels in " + labels_path);
  }
  if (dataset.size() == 0) return Damaged(images_path, "no images at all");
  return dataset;
}

Dataset ShardOf(const Dataset& whole, uint32_t rank, uint32_t world_size, uint64_t seed, double skew) {
  LH_CHECK_OP(rank, <, world_size);
  LH_CHECK(skew >= 0 && skew <= 1);
  std::vector<uint32_t> order(whole.size());
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);

  const auto sorted = static_cast<size_t>(std::llround(skew * static_cast<double>(order.size())));
  const auto by_label = [&](uint32_t a, uint32_t b) { return whole.labels[a] < whole.labels[b]; };
  std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(sorted), by_label);

  Dataset shard;
  const auto take = [&](uint32_t index) {
    const std::span<const uint8_t> image = whole.image(index);
    shard.pixels.insert(shard.pixels.end(), image.begin(), image.end());
    shard.labels.push_back(whole.labels[index]);
  };
  for (size_t i = sorted * rank / world_size; i < sorted * (rank + 1) / world_size; ++i) take(order[i]);
  for (size_t i = sorted + rank; i < order.size(); i += world_size) take(order[i]);
  return shard;
}

float ShardWeight(const Dataset& shard, size_t total, uint32_t world_size) {
  LH_CHECK_OP(total, >=, size_t{1});
  return static_cast<float>(static_cast<double>(shard.size()) * world_size / static_cast<double>(total));
}

}  // namespace longhaul::worker
