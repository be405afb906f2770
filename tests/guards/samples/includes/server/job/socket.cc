#include "server/job/fine.h"
#include <asio/ip/udp.hpp>
#include <sys/socket.h>
#include <thread>
