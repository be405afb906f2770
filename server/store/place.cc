#include "server/store/place.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "base/bytes.h"

namespace longhaul::server::store {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = 4096;  // four numbers; what is longer is something else

std::string PathIn(const std::string& directory) { return directory + "/place.json"; }

}  // namespace

std::string StoredPlace::ToString() const {
  return "server " + std::to_string(server + 1) + " of " + std::to_string(servers);
}

Result<std::optional<StoredPlace>> ReadPlace(Files& files, const std::string& directory) {
  auto file = files.Open(PathIn(directory));
  if (file.status().code() == StatusCode::kNotFound) return std::optional<StoredPlace>();
  if (!file.ok()) return file.status();
  const Status damaged(StatusCode::kDataLoss,
                       PathIn(directory) + " does not say of which server the directory is");
  if ((*file)->size() > kMaxBytes) return damaged;
  std::vector<uint8_t> bytes((*file)->size());
  if (Status read = (*file)->Read(bytes); !read.ok()) return read;
  const json value = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  StoredPlace place;
  for (const char* key : {"map_epoch", "server", "servers", "start"}) {
    if (!value.is_object() || !value.contains(key) || !value[key].is_number_unsigned()) return damaged;
  }
  place.map_epoch = value["map_epoch"];
  place.start = value["start"];
  const uint64_t server = value["server"];
  const uint64_t servers = value["servers"];
  if (place.map_epoch == 0 || server >= servers || servers > UINT32_MAX) return damaged;
  place.server = static_cast<uint32_t>(server);
  place.servers = static_cast<uint32_t>(servers);
  return std::optional(place);
}

Status WritePlace(Files& files, const std::string& directory, const StoredPlace& place) {
  const json value = {{"map_epoch", place.map_epoch},
                      {"server", place.server},
                      {"servers", place.servers},
                      {"start", place.start}};
  const std::string text = value.dump() + "\n";
  const std::string part = PathIn(directory) + ".part";
  (void)files.Remove(part);  // that an earlier server has left half-written
  {
    auto file = files.Create(part);
    if (!file.ok()) return file.status();
    const ByteSpan bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    if (Status written = (*file)->Write(bytes); !written.ok()) return written;
    if (Status synced = (*file)->Sync(); !synced.ok()) return synced;
  }
  if (Status renamed = files.Rename(part, PathIn(directory)); !renamed.ok()) return renamed;
  return files.SyncDirectory(directory);
}

}  // namespace longhaul::server::store
