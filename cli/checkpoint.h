// `longhaul checkpoint`: what is in a longhaul-server's --checkpoint-dir, whether it is whole, and the model
// out of it as one file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longhaul::cli {

struct CheckpointOptions {
  std::string directory;
  uint64_t generation = 0;  // which one; 0: the newest that is good (verify: all)
  std::string out = {};     // of export
  bool optimizer = false;   // export its state too
};

struct ReshardCommandOptions {
  std::vector<std::string> directories;
  uint32_t servers = 1;
  std::string out = {};
};

// Exit codes: 0 fine, 1 a checkpoint is damaged, there is none, or the file cannot be written.
// Each prints one JSON object a line.
int RunCheckpointList(const CheckpointOptions& options);
int RunCheckpointVerify(const CheckpointOptions& options);
int RunCheckpointExport(const CheckpointOptions& options);
int RunCheckpointReshard(const ReshardCommandOptions& options);

}  // namespace longhaul::cli
