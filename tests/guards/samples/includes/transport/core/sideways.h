#pragma once

#include "server/fine.h"
#include <google/protobuf/message.h>
#include "sideways.h"
#include <vector>
