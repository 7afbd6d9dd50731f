// The server's sides that strangers reach: bodies of requests, HTTP itself, and the streams that
// answers go out in, whatever a model wrote.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "http/http.h"
#include "paths.h"
#include "pith/tokenizer.h"
#include "serve/events.h"
#include "serve/forms.h"
#include "serve/gate.h"
#include "serve/refusal.h"
#include "serve/tool_reader.h"

namespace pith::fuzz {
namespace {

using serve::Json;

/// The first byte names the form of the request.
std::vector<std::string> request_seeds() {
  const std::vector<std::string> bodies = {
      R"({"messages":[{"role":"system","content":"x"},{"role":"user","content":[{"type":"text",
"text":"Hi"}]},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":
"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"2"}],"temperature":0.5,
"n":2,"seed":7,"stop":["a","b"],"logit_bias":{"7":-100},"logprobs":true,"top_logprobs":2,
"stream":true,"stream_options":{"include_usage":true},"tools":[{"type":"function","function":{
"name":"f","parameters":{"type":"object","properties":{"x":{"type":"integer"}}}}}],
"tool_choice":"required","pith":{"policy":"exact+int4","session":"c"}})",
      R"({"prompt":["Hi",[1,2,3]],"max_tokens":5,"echo":true,"logprobs":3})",
      R"({"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]},
{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output",
"call_id":"1","output":"x"}],"instructions":"Be brief","text":{"format":{"type":"json_schema",
"name":"n","schema":{"type":"object","properties":{"a":{"type":"string"}}}}},"max_output_tokens":9})",
      R"({"model":"m","max_tokens":9,"system":[{"type":"text","text":"x"}],"messages":[{"role":
"user","content":"Hi"},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f",
"input":{"x":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":
"2"}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"stop_sequences":["x"]})",
      R"({"input_prefix":"a","input_suffix":"b","n_predict":4})",
      R"({"messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_object"},
"chat_template_kwargs":{"enable_thinking":false}})"};
  std::vector<std::string> seeds;
  for (size_t i = 0; i < bodies.size(); ++i) {
    seeds.push_back(static_cast<char>(i) + bodies[i]);
    if (i == 0 || i == 5) seeds.push_back('\6' + bodies[i]);
  }
  return seeds;
}

serve::Call call_of(size_t form, const Json& body) {
  const serve::GateOptions options{.sampling = {.seed = 0}, .vocabulary = 8000, .context = 256};
  switch (form) {
    case 1: return serve::text_call(body, options);
    case 2: (void)serve::responses_echo(body); return serve::responses_call(body, options);
    case 3: return serve::messages_call(body, options);
    case 4: return serve::infill_call(body, options);
    case 6: return serve::template_call(body, options);
    default: return serve::chat_call(body, options);
  }
}

bool read_request(std::string_view input) {
  if (input.empty()) return false;
  static const auto tokenizer = load_tokenizer(repo_dir() / "models/demo");
  static const serve::Forms forms(*tokenizer, nullptr);
  try {
    const Json body = serve::parse_object(input.substr(1));
    const serve::Call call = call_of(static_cast<uint8_t>(input.front()) % 7, body);
    need(call.n >= 1 && call.n <= 8, "answers are counted");
    for (const std::string& message : call.messages)
      need(Json::accept(message), "messages are JSON: " + message);
    if (!call.tools.empty()) need(Json::accept(call.tools), "tools are JSON");
    (void)forms.of(call);
    for (const std::string& message : serve::tools_as_text(call).messages)
      need(Json::accept(message), "messages with tools as text are JSON");
    return true;
  } catch (const serve::Refusal& refusal) {
    need(refusal.status >= 400 && refusal.status < 500, refusal.what());
    last_refusal() = refusal.what();
    need(Json::accept(serve::error_json(refusal)), "a refusal is JSON");
    return false;
  }
}

/// Of what a model wrote: events are one line of JSON each, calls of tools come out whole.
std::vector<std::string> stream_seeds() {
  return {
      "Hello\n\nworld \xc3\xb6 \xe2\x82",
      "text <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\\\"\"]}}\n</tool_call>\n"
      "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
      "data: x\r\n\r\nevent: y\n<tool_call>{\"arguments\":{}, \"name\":\"f\"}"};
}

Json data_of(const std::string& event) {
  need(event.starts_with("data: ") && event.ends_with("\n\n"), "an event is data: " + event);
  const std::string line = event.substr(6, event.size() - 8);
  need(line.find_first_of("\r\n") == std::string::npos, "an event is one line: " + event);
  need(Json::accept(line), "an event is JSON: " + event);
  return Json::parse(line);
}

bool stream(std::string_view input) {
  const serve::AnswerHead head{.id = "a", .model = "m", .fingerprint = "f"};
  Utf8Stream utf8;
  serve::ToolReader reader(input.size() % 5 == 0);
  std::string text, said;
  int depth = 0;
  const auto take = [&](const std::vector<serve::ToolPiece>& pieces) {
    for (const serve::ToolPiece& piece : pieces) {
      using Kind = serve::ToolPiece::Kind;
      if (piece.kind == Kind::kBegins) ++depth;
      if (piece.kind == Kind::kEnds) --depth;
      need(depth == 0 || depth == 1, "calls begin and end in turn");
      if (piece.kind != Kind::kText) continue;
      said += piece.text;
      const Json event = data_of(serve::text_event(head, 0, piece.text, {}, false, 0));
      need(event["choices"][0]["delta"]["content"] == piece.text, "an event says the text");
    }
  };
  for (size_t at = 0, n = 1; at < input.size(); at += n, n = 1 + at % 7) {
    const std::string more = utf8.push(input.substr(at, n));
    text += more;
    take(reader.push(more));
    const std::string chunk = http::chunk_text(more.empty() ? "x" : more);
    need(chunk.ends_with("\r\n"), "a chunk ends with a line");
  }
  const std::string rest = utf8.flush();
  text += rest;
  take(reader.push(rest));
  take(reader.finish());
  // Blanks at the end belong to a call that might have come.
  if (input.size() % 5 != 0 && text.find(serve::kCallOpens) == std::string::npos)
    need(text.starts_with(said) && text.find_first_not_of(" \n", said.size()) == std::string::npos,
         "text comes out whole");
  return true;
}

/// A server that repeats what it is asked, in one piece or as a stream.
http::Server& server() {
  static http::Server one(
      http::Options{
          .port = 0, .header_bytes = 2048, .body_bytes = 4096, .requests_a_connection = 20},
      {.admit = [](const http::Request& head) -> std::optional<http::Response> {
         if (head.path == "/no") return http::Response{403, {}, "no"};
         return std::nullopt;
       },
       .handle =
           [](http::Request request, const std::shared_ptr<http::Exchange>& exchange) {
             (void)request.parameter("a");
             (void)request.find("content-type");
             if (request.path != "/stream") return exchange->send({200, {}, request.body});
             exchange->begin({200, {{"Content-Type", "text/event-stream"}}, ""});
             for (const char c : request.body) exchange->write(std::string(1, c));
             exchange->end();
           },
       .refuse =
           [](int status, std::string_view why) {
             return http::Response{status, {}, std::string(why)};
           }});
  return one;
}

/// The answer to these bytes, until the server closes. Throws after a minute. A client that
/// says that it `ends` may count as one that has gone, and get no answer.
std::string exchanged(std::string_view bytes, bool ends) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(server().port());
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  need(s >= 0 && connect(s, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0, "the server lives");
  const size_t half = bytes.size() / 2;
  for (const auto& part : {bytes.substr(0, half), bytes.substr(half)})
    (void)!send(s, part.data(), part.size(), MSG_NOSIGNAL);
  if (ends) shutdown(s, SHUT_WR);
  std::string out;
  char buffer[4096];
  pollfd waits{s, POLLIN, 0};
  bool late = false;
  for (ssize_t n = 1; n > 0;) {
    late = poll(&waits, 1, 60000) == 0;
    n = late ? 0 : recv(s, buffer, sizeof(buffer), 0);
    if (n > 0) out.append(buffer, static_cast<size_t>(n));
  }
  close(s);
  need(!late, "a connection whose requests have ended is closed");
  return out;
}

std::vector<std::string> http_seeds() {
  return {
      "POST /a?a=%20b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
      "POST /stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /no HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /a%2Fb HTTP/1.0\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"};
}

bool speak_http(std::string_view input) {
  static size_t runs = 0;
  const std::string out = exchanged(input, true);
  need(out.empty() || out.starts_with("HTTP/1."), "an answer is HTTP: " + out.substr(0, 99));
  if (++runs % 64 == 0) {
    const std::string good = exchanged("POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nok", false);
    need(good.ends_with("\r\n\r\nok"), "the server still answers: " + good);
  }
  return out.empty() || out.find(" 200 OK\r\n") != std::string::npos;
}

}  // namespace

std::span<const Target> serve_targets() {
  static const Target all[] = {
      {"request", request_seeds, read_request, 1000},
      {"stream", stream_seeds, stream},
      {"http", http_seeds, speak_http},
  };
  return all;
}

}  // namespace pith::fuzz
