#pragma once

#include <string>

inline std::string Fine() { return "fine"; }
