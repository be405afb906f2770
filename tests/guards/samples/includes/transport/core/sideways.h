#pragma once

#include <google/protobuf/message.h>
#include <vector>
#include "server/fine.h"
#include "sideways.h"
