// How a site's ranks are numbered: node after node, each with as many. Every node's device has one slot more,
// its relay's, which is the last.
#pragma once

#include <bit>
#include <cstdint>

#include "longhaul/offload.h"

namespace longhaul::site {

// A rank's or a relay's device.
struct Place {
  uint8_t node = 0;
  uint8_t slot = 0;
};

struct SiteShape {
  uint8_t nodes = 1;
  uint8_t ranks_per_node = 1;  // without the relay

  // REQUIRES: a site whose devices have a rank besides the relay.
  static SiteShape Of(const offload::SiteOptions& site) {
    return {site.nodes, static_cast<uint8_t>(site.ranks_per_node - 1)};
  }
  uint32_t ranks() const { return uint32_t{nodes} * ranks_per_node; }
  uint8_t relay_slot() const { return ranks_per_node; }
  uint8_t IndexOf(Place place) const {
    return static_cast<uint8_t>(place.node * ranks_per_node + place.slot);
  }
  Place PlaceOf(uint8_t rank) const {
    return {static_cast<uint8_t>(rank / ranks_per_node), static_cast<uint8_t>(rank % ranks_per_node)};
  }
  // A bit for every rank of that node.
  uint64_t RanksOf(uint8_t node) const {
    return ((uint64_t{1} << ranks_per_node) - 1) << (node * ranks_per_node);
  }
  // Of these, those of that node, as its device counts them.
  uint64_t SlotsOf(uint64_t ranks, uint8_t node) const {
    return (ranks & RanksOf(node)) >> (node * ranks_per_node);
  }
  // Those that have any of these.
  uint64_t NodesOf(uint64_t ranks) const {
    uint64_t found = 0;
    for (; ranks != 0; ranks &= ranks - 1) {
      found |= uint64_t{1} << PlaceOf(static_cast<uint8_t>(std::countr_zero(ranks))).node;
    }
    return found;
  }
};

// A claim to speak for the site: later ones are higher. 0: none.
constexpr uint64_t LeadershipOf(uint64_t number, uint8_t node) { return number << 4 | node; }
constexpr uint8_t NodeOfLeader(uint64_t leader) { return static_cast<uint8_t>(leader & 15); }

// Of the device: collectives of ranks and relay, whose numbers begin anew with each leader. Programs that use
// the site's device themselves take jobs below 0x4000.
constexpr uint16_t JobOfLeader(uint64_t leader) { return static_cast<uint16_t>(0x4000 | (leader & 0x3fff)); }

}  // namespace longhaul::site
