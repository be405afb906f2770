#include "cli/checkpoint.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/store/checkpoint.h"
#include "server/store/shards.h"

namespace longhaul::cli {
namespace {

using nlohmann::json;
using server::store::CheckpointPath;
using server::store::Manifest;

int Failed(const Status& why) {
  std::fprintf(stderr, "longhaul checkpoint: %s\n", why.ToString().c_str());
  return 1;
}

// One of them, or with generation 0 all; newest first.
Result<std::vector<CheckpointPath>> Chosen(const CheckpointOptions& options) {
  auto found = server::store::ListCheckpoints(SystemFiles(), options.directory);
  if (!found.ok()) return found;
  if (options.generation != 0)
    std::erase_if(*found, [&](const CheckpointPath& c) { return c.generation != options.generation; });
  if (found->empty()) {
    return Status(StatusCode::kNotFound,
                  options.generation == 0 ? "there are no checkpoints in " + options.directory
                                          : "there is no checkpoint " + std::to_string(options.generation) +
                                                " in " + options.directory);
  }
  return found;
}

// What both of the manifest and of the reason why there is none can be told.
json LineOf(const CheckpointPath& checkpoint, const Result<Manifest>& manifest) {
  json line = {{"generation", checkpoint.generation},
               {"path", checkpoint.path},
               {"code", StatusCodeName(manifest.status().code())}};
  if (!manifest.ok()) {
    line["message"] = manifest.status().message();
    return line;
  }
  uint64_t elements = 0;
  for (const Manifest::Tensor& tensor : manifest->tensors) elements += tensor.count;
  line.update({{"job", manifest->job},
               {"rounds", manifest->rounds},
               {"written", manifest->written},
               {"tensors", manifest->tensors.size()},
               {"elements", elements},
               {"bytes", manifest->parameters.bytes + manifest->optimizer.bytes}});
  return line;
}

// Names come from a file: replace rather than throw on what is not UTF-8, and no byte commands a terminal.
void Print(const json& line) {
  std::printf("%s\n", line.dump(-1, ' ', true, json::error_handler_t::replace).c_str());
}

template <typename Read>
int ForEach(const CheckpointOptions& options, const Read& read) {
  const auto found = Chosen(options);
  if (!found.ok()) return Failed(found.status());
  int code = 0;
  for (const CheckpointPath& checkpoint : *found) {
    const Result<Manifest> manifest = read(checkpoint.path);
    Print(LineOf(checkpoint, manifest));
    if (!manifest.ok()) code = 1;
  }
  return code;
}

}  // namespace

int RunCheckpointList(const CheckpointOptions& options) {
  return ForEach(options,
                 [](const std::string& path) { return server::store::ReadManifest(SystemFiles(), path); });
}

int RunCheckpointVerify(const CheckpointOptions& options) {
  return ForEach(
      options, [](const std::string& path) { return server::store::VerifyCheckpoint(SystemFiles(), path); });
}

int RunCheckpointExport(const CheckpointOptions& options) {
  const auto found = Chosen(options);
  if (!found.ok()) return Failed(found.status());
  auto& files = SystemFiles();
  Status last;
  for (const CheckpointPath& checkpoint : *found) {
    last = server::store::ExportCheckpoint(files, checkpoint.path, options.out, options.optimizer);
    if (last.ok()) {
      Print(LineOf(checkpoint, server::store::ReadManifest(files, checkpoint.path)));
      return 0;
    }
    if (last.code() != StatusCode::kDataLoss) break;  // an older one would not do better
    (void)Failed(last);
  }
  return last.code() == StatusCode::kDataLoss ? 1 : Failed(last);
}

int RunCheckpointReshard(const ReshardCommandOptions& options) {
  const auto resharded = server::store::Reshard(
      SystemFiles(), {.directories = options.directories, .servers = options.servers, .out = options.out});
  if (!resharded.ok()) return Failed(resharded.status());
  Print({{"rounds", resharded->rounds},
         {"servers", options.servers},
         {"map_epoch", resharded->map_epoch},
         {"goes_on", resharded->goes_on},
         {"directories", resharded->directories}});
  return 0;
}

}  // namespace longhaul::cli
