#pragma once
#include "server/job/fine.h"
