// Which way a seg goes: this node's places in the rings of a message, where sums go from there, and what its
// packets say.
//
//   the seg's route (collective.h)    who owns it by its number, the same at every node
//   this node's place (RingPlace)     that route without the nodes which this node takes for leaves
//   the seg's owner (Seg::owner)      who makes the result, once that is known to be another node
#pragma once

#include <cstdint>

#include "offload/engine/control_store.h"
#include "offload/engine/operation.h"
#include "offload/engine/wire.h"

namespace longhaul::offload {

// This node's place in the ring of every owner. In a tree the root is the last of all, and a child the first
// of two. `transfer`: of a sum to another node.
void MakePlaces(ControlStore& store, Duration transfer, Operation& op);

// Whether this node makes the result.
bool OwnsSeg(const Operation& op, uint32_t sid);

// The node at a position of this node's ring. The owner may be another than this node takes it for; the one
// of the seg's route knows.
uint8_t TargetOf(const Operation& op, uint32_t sid, uint32_t position);

// Who has made that result.
uint8_t OwnerIn(const Operation& op, const Header& result);

// Whether the answer is about this node's own sum, which is not taken yet.
bool IsOnItsWay(const Seg& seg, const Header& answer);

// Of a packet about this seg, from this node.
Header HeaderOf(const Operation& op, uint32_t sid, PacketKind kind);

}  // namespace longhaul::offload
