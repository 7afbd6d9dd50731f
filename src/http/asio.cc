// The bodies of Boost.Asio and Boost.Beast, compiled once.

#include <utility>  // first: Boost 1.74 uses it and does not say so

#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
