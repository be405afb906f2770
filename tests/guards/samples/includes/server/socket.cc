#include <sys/socket.h>
#include <asio/ip/udp.hpp>
#include <thread>
#include "server/fine.h"
