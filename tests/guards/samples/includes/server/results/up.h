#pragma once
#include "server/round/up.h"
