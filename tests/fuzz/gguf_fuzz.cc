// libFuzzer: any bytes as a GGUF file: its container, every key, the model's config and tokenizer,
// and a text through that. An Error that names the problem, or a file all of which can be touched.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/gguf.h"
#include "model/loaders/gguf_model.h"
#include "model/tokenizers/tokenizer_kinds.h"
#include "pith/error.h"

namespace {

using pith::Error;
using pith::ErrorCode;
using pith::Gguf;

template <class Body>
void harmless(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) __builtin_trap();
  }
}

void touch(const Gguf& file) {
  size_t length = 0;
  unsigned sum = 0;
  for (const auto& [name, value] : file.keys()) length += file.describe(name).size();
  for (const auto& [name, tensor] : file.tensors()) {
    length += tensor.shape_text().size();
    for (size_t i = 0; i < tensor.bytes; ++i) sum += static_cast<unsigned>(tensor.data[i]);
  }
  volatile size_t seen = length + sum;
  (void)seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  harmless([&] {
    const Gguf file = Gguf::parse(std::as_bytes(std::span(data, size)), "fuzz");
    touch(file);
    harmless([&] { (void)pith::read_gguf_config(file); });
    harmless([&] {
      const auto tokenizer = pith::load_gguf_tokenizer(file);
      const auto ids = tokenizer->encode("Größe 12 <s>\n x</s>");
      if (tokenizer->decode(ids).size() > (size_t{1} << 24)) __builtin_trap();
    });
  });
  return 0;
}
