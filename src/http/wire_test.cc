// Heads and chunks as they go over the wire; what a request's target hides.

#include <gtest/gtest.h>

#include "http/http.h"

namespace pith::http {
namespace {

TEST(Wire, HeadsAreWhatTheySay) {
  const Response response{404, {{"Content-Type", "text/plain"}}, "gone"};
  EXPECT_EQ(head_text(response, false, false),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(head_text(response, true, true),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
            "Connection: close\r\n\r\n");
}

TEST(Wire, AValueCannotBeginAnotherHeader) {
  const Response response{200, {{"X", "a\r\nSet-Cookie: b"}}, ""};
  EXPECT_EQ(head_text(response, false, false),
            "HTTP/1.1 200 OK\r\nX: aSet-Cookie: b\r\nContent-Length: 0\r\n\r\n");
}

TEST(Wire, Chunks) {
  EXPECT_EQ(chunk_text("data: x\n\n"), "9\r\ndata: x\n\n\r\n");
  EXPECT_EQ(chunk_text(std::string(300, 'a')).substr(0, 5), "12c\r\n");
  EXPECT_EQ(chunk_text(""), "0\r\n\r\n");
}

TEST(Wire, TargetsAreDecodedOnce) {
  EXPECT_EQ(percent_decoded("/a%20b%2525"), "/a b%25");
  EXPECT_EQ(percent_decoded("/a%"), std::nullopt);
  EXPECT_EQ(percent_decoded("/a%2"), std::nullopt);
  EXPECT_EQ(percent_decoded("/a%zz"), std::nullopt);
  EXPECT_EQ(percent_decoded("/a%00"), std::nullopt);
}

TEST(Wire, HeadersAndParametersAreFoundByName) {
  Request request;
  request.headers = {{"X-Api-Key", "one"}, {"x-api-key", "two"}};
  EXPECT_EQ(*request.find("x-API-key"), "one");
  EXPECT_EQ(request.find("x-api"), nullptr);
  request.query = "action=save&name=a%20b&empty=&bare";
  EXPECT_EQ(request.parameter("action"), "save");
  EXPECT_EQ(request.parameter("name"), "a b");
  EXPECT_EQ(request.parameter("empty"), "");
  EXPECT_EQ(request.parameter("bare"), "");
  EXPECT_EQ(request.parameter("action2"), "");
}

}  // namespace
}  // namespace pith::http
