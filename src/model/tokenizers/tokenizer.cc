#include "pith/tokenizer.h"

#include <fmt/format.h>

#include "core/gguf.h"
#include "core/input_file.h"
#include "model/tokenizers/tokenizer_kinds.h"

namespace pith {

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  if (Gguf::recognises(folder)) return load_gguf_tokenizer(Gguf::open(folder));
  const auto json = folder / "tokenizer.json", model = folder / "tokenizer.model";
  const bool has_json = is_there(json);
  if (!has_json && !is_there(model)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} holds no tokenizer; supported: tokenizer.json (Hugging Face "
                            "tokenizers) or tokenizer.model (SentencePiece) in a folder, or a "
                            "GGUF file",
                            folder.string()));
  }
  const TokenizerConfig config = read_tokenizer_config(folder);
  return has_json ? load_json_tokenizer(json, config) : load_sentencepiece_tokenizer(model, config);
}

}  // namespace pith
