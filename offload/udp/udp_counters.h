// What happened at a node's UDP port, since it was opened.
#pragma once

#include <array>
#include <cstdint>

#include "longhaul/stats.h"

namespace longhaul::offload {

struct UdpCounters {
  uint64_t datagrams_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t send_calls = 0;
  uint64_t datagrams_received = 0;
  uint64_t bytes_received = 0;
  uint64_t receive_calls = 0;
  uint64_t host_drops = 0;
  uint64_t socket_full = 0;
  uint64_t packets_dropped = 0;
  uint64_t too_big = 0;
  uint64_t send_errors = 0;
  uint64_t packets_without_peer = 0;
  uint64_t hellos_sent = 0;
  uint64_t opened = 0;
  uint64_t restarts = 0;
  uint64_t foreign = 0;
  uint64_t unknown_senders = 0;
  uint64_t forged = 0;
  uint64_t replayed = 0;
  uint64_t old_processes = 0;
  uint64_t derivations_refused = 0;
};

inline constexpr std::array<Counter<UdpCounters>, 21> kUdpCounters = {{
    {&UdpCounters::datagrams_sent, "datagrams_sent", "datagrams that the kernel took"},
    {&UdpCounters::bytes_sent, "bytes_sent", "UDP payload of these"},
    {&UdpCounters::send_calls, "send_calls", "system calls that sent"},
    {&UdpCounters::datagrams_received, "datagrams_received",
     "datagrams that arrived, those of strangers too"},
    {&UdpCounters::bytes_received, "bytes_received", "UDP payload of these"},
    {&UdpCounters::receive_calls, "receive_calls", "system calls that received"},
    {&UdpCounters::host_drops, "host_drops",
     "datagrams that a full receive buffer lost; those of one peer that came merged count once"},
    {&UdpCounters::socket_full, "socket_full",
     "sends that found the socket's buffer full; they are made again"},
    {&UdpCounters::packets_dropped, "packets_dropped",
     "packets that found their batch full; their timers send them again"},
    {&UdpCounters::too_big, "too_big", "sends that the interface refused for their size"},
    {&UdpCounters::send_errors, "send_errors",
     "datagrams given up by another error: firewall, route, interface"},
    {&UdpCounters::packets_without_peer, "packets_without_peer",
     "packets for a node whose process has not said hello yet"},
    {&UdpCounters::hellos_sent, "hellos_sent", "hellos, and answers to them"},
    {&UdpCounters::opened, "opened", "datagrams that authenticated, and were passed to the engine"},
    {&UdpCounters::restarts, "restarts", "newer processes of a node that was known"},
    {&UdpCounters::foreign, "foreign", "datagrams with another layout or version; dropped"},
    {&UdpCounters::unknown_senders, "unknown_senders",
     "datagrams of a node, or with insecure an address, that is no peer; dropped"},
    {&UdpCounters::forged, "forged",
     "datagrams that do not open: another key, another receiver, changed; dropped"},
    {&UdpCounters::replayed, "replayed",
     "datagrams that were here already, or that are too old to tell; dropped"},
    {&UdpCounters::old_processes, "old_processes",
     "datagrams of a process before the one that is known; dropped"},
    {&UdpCounters::derivations_refused, "derivations_refused",
     "datagrams under a new key, more than are tried in that time; dropped"},
}};

}  // namespace longhaul::offload
