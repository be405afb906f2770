// Rare events inside the program, made frequent on purpose: after FoundationDB's BUGGIFY.
//
//   if (now >= soft || LH_INJECT("window-closes-early")) return CloseAs(wire::CloseReason::kSoft);
//
// A point is a named place where something may happen that a correct program survives. All are off until
// Enable() (the daemons' --inject, a share of the simulator's runs): a point that is off costs a load and a
// branch. Names are unique, in lower case with hyphens. For functions in .cc files only.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "longhaul/status.h"

namespace longhaul::inject {

struct alignas(32) Point {
  const char* name;
  std::atomic<uint32_t> chance = 0;  // of 2^32
  std::atomic<uint64_t> times = 0;   // how often it fired

  bool Fires() { return chance.load(std::memory_order_relaxed) != 0 && Draw(); }

 private:
  bool Draw();
};

// Of all that is linked into this program.
std::span<Point> AllPoints();
// "name, name, ..."
std::string PointNames();

// From now on, in the whole process: "NAME=CHANCE,...[,seed=N]", chances between 0 and 1, `all` for every
// point. Nothing changes on errors. kInvalidArgument: says what is wrong.
Status Enable(std::string_view list);
bool AnyEnabled();
// Turns all points off and sets their counts to zero; for the simulator.
void Disable();

}  // namespace longhaul::inject

// The linker gathers what is in one section, and names its ends.
#define LH_INJECT(text)                                                                                 \
  ([]() -> ::longhaul::inject::Point& {                                                                 \
    [[gnu::section("longhaul_points"), gnu::used]] static constinit ::longhaul::inject::Point point = { \
        text};                                                                                          \
    return point;                                                                                       \
  }()                                                                                                   \
               .Fires())
