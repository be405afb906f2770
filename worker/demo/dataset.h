// Fashion-MNIST as longhaul-trainer reads it: gzipped IDX files in one directory.
//
// Files are not trusted: whatever is wrong with them is a Status that names the file and says what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "longhaul/status.h"

namespace longhaul::worker {

// Where Debian's package dataset-fashion-mnist puts the files.
inline constexpr const char* kDefaultDatasetDirectory = "/usr/share/datasets/fashion-mnist";

// Images of 28 x 28 grey pixels and their class.
struct Dataset {
  static constexpr size_t kPixels = 28 * 28;
  static constexpr size_t kClasses = 10;

  std::vector<uint8_t> pixels;  // size() * kPixels, image after image, row after row
  std::vector<uint8_t> labels;  // 0..kClasses-1

  size_t size() const { return labels.size(); }
  std::span<const uint8_t> image(size_t i) const { return std::span(pixels).subspan(i * kPixels, kPixels); }
};

enum class DatasetPart : uint8_t { kTrain, kTest };

// Reads the images and labels of one part from `directory`.
// Errors: kNotFound (a file is missing: the text names the Debian package), kDataLoss (damaged, truncated,
// wrong magic number, counts of images and labels that differ, a label out of range).
Result<Dataset> LoadFashionMnist(const std::string& directory, DatasetPart part);

// The share of one worker, after a shuffle that depends on `seed` alone. `skew` (0..1) of the images are
// sorted by label and dealt in one run each: so that share of a worker's images comes from "its" one or few
// classes. Of the others it gets every world_size-th. The shards of all ranks are disjoint, together complete
// and of equal size (up to two images). REQUIRES: rank < world_size, skew in 0..1.
Dataset ShardOf(const Dataset& whole, uint32_t rank, uint32_t world_size, uint64_t seed, double skew = 0);

// What the gradients of a worker with this shard should count for, so that every image counts the same: its
// size by the even share, 1 for equal shards. REQUIRES: total >= 1.
float ShardWeight(const Dataset& shard, size_t total, uint32_t world_size);

// The pieces of LoadFashionMnist; `name` is for messages.
// Whole content of a (gzipped or plain) file, at most `max_bytes`.
Result<std::vector<uint8_t>> ReadGzipFile(const std::string& path, size_t max_bytes);
// IDX3 of unsigned bytes, 28 x 28: the pixels.
Result<std::vector<uint8_t>> ParseIdxImages(ByteSpan file, const std::string& name);
// IDX1 of unsigned bytes below Dataset::kClasses.
Result<std::vector<uint8_t>> ParseIdxLabels(ByteSpan file, const std::string& name);

}  // namespace longhaul::worker
