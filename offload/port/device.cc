#include <new>
#include <string>
#include <utility>

#include "longhaul/offload.h"
#include "offload/port/port.h"

namespace longhaul::offload {
namespace {

constexpr std::string_view kInProcess = "inproc:";
constexpr std::string_view kSharedMemory = "unix:";

Status Gone() { return Status(StatusCode::kFailedPrecondition, "offload: the device was moved from"); }

}  // namespace

std::string_view WorkStatusName(WorkStatus status) {
  static constexpr std::string_view kNames[] = {
      "success", "buffer_error", "length_mismatch", "op_mismatch", "protection_error", "bad_rank", "bad_node",
      "timeout", "peer_dead",    "overflow",        "cancelled",   "flushed",          "partial"};
  const auto index = static_cast<size_t>(status);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

Device::Device(std::unique_ptr<Port> port) : port_(std::move(port)) {}
Device::Device(Device&&) noexcept = default;
Device& Device::operator=(Device&&) noexcept = default;
Device::~Device() = default;

Result<Device> Device::Open(std::string_view where, const DeviceOptions& options) {
  const bool daemon = where.starts_with(kSharedMemory);
  const std::string_view scheme = daemon ? kSharedMemory : kInProcess;
  if (!where.starts_with(scheme) || where.size() == scheme.size()) {
    return Status(StatusCode::kInvalidArgument, "offload: a device is opened as inproc:NAME or unix:PATH");
  }
  const std::string_view rest = where.substr(scheme.size());
  try {
    auto port = daemon ? OpenSharedMemory(std::string(rest), options) : OpenInProcess(rest, options);
    if (!port.ok()) return port.status();
    return Device(std::move(*port));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "offload: no memory for the device");
  }
}

Result<uint32_t> Device::Register(std::span<std::byte> memory) {
  return port_ == nullptr ? Result<uint32_t>(Gone()) : port_->Register(memory);
}

Result<Allocation> Device::Allocate(uint64_t bytes, std::string_view shared_name) {
  return port_ == nullptr ? Result<Allocation>(Gone()) : port_->Allocate(bytes, shared_name);
}

Status Device::Deregister(uint32_t key) { return port_ == nullptr ? Gone() : port_->Deregister(key); }

Status Device::Post(std::span<const WorkRequest> requests, size_t* bad) {
  if (bad != nullptr) *bad = 0;
  return port_ == nullptr ? Gone() : port_->Post(requests, bad);
}

size_t Device::Poll(std::span<Completion> completions) {
  return port_ == nullptr ? 0 : port_->Poll(completions);
}

Status Device::RequestNotify() { return port_ == nullptr ? Gone() : port_->RequestNotify(); }
int Device::fd() const { return port_ == nullptr ? -1 : port_->fd(); }

Status Device::Configure(uint16_t jid, const JobConfig& config, uint64_t wr_id) {
  WorkRequest request;
  request.wr_id = wr_id;
  request.opcode = Opcode::kConfig;
  request.jid = jid;
  request.config = &config;
  request.root_node = WorkRequest::kThisNode;
  return Post({&request, 1});
}

Status Device::Query(uint16_t jid, uint32_t mid, uint64_t wr_id) {
  WorkRequest request;
  request.wr_id = wr_id;
  request.opcode = Opcode::kQuery;
  request.jid = jid;
  request.mid = mid;
  return Post({&request, 1});
}

Status Device::Cancel(uint16_t jid, uint32_t mid, uint64_t wr_id) {
  WorkRequest request;
  request.wr_id = wr_id;
  request.opcode = Opcode::kCancel;
  request.jid = jid;
  request.mid = mid;
  return Post({&request, 1});
}

SiteOptions Device::site() const { return port_ == nullptr ? SiteOptions() : port_->site(); }
uint8_t Device::node() const { return port_ == nullptr ? uint8_t{0} : port_->node(); }
OffloadStats Device::stats() const { return port_ == nullptr ? OffloadStats() : port_->stats(); }

void Device::Close() {
  if (port_ != nullptr) port_->Close();
}

}  // namespace longhaul::offload
