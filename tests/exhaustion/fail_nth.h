// Lets the n-th allocation, or the n-th system call, of this process fail once; counts them otherwise.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace longhaul::exhaustion {

enum class What : uint8_t { kNothing, kAllocation, kSystemCall };

// From now on, until Disarm. n = 1 is the next one.
void Arm(What what, uint64_t n);
void Disarm();
// Whether one was made to fail since Arm.
bool Struck();
// Called by what can fail: whether this one does.
bool Fails(What what);

// Whether a function on the stack has one of these in its mangled name; -rdynamic keeps the names.
bool IsOnTheStack(std::initializer_list<const char*> names);

}  // namespace longhaul::exhaustion
