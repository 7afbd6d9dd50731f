#include "llama_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace pith::cli {
namespace {

struct Answer {
  std::string_view names;  // separated by blanks
  std::string_view instead;
};

constexpr std::array kAnswers{
    Answer{"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url",
           "give -m a folder, a GGUF file, or a name that 'pith pull' knows; other models: "
           "huggingface-cli download REPO --local-dir FOLDER"},
    Answer{"-ngl --gpu-layers --n-gpu-layers -nkvo --no-kv-offload -sm --split-mode -ts "
           "--tensor-split -mg --main-gpu",
           "a model runs whole on one device: --device cuda or --device cpu"},
    Answer{"-cnv --conversation", "'pith chat' holds a conversation, by the model's own template"},
    Answer{"-no-cnv --no-conversation",
           "'pith run' completes a text unless told otherwise (--chat, -i)"},
    Answer{"-sys -sysf --system-prompt-file",
           "--system TEXT, of 'pith chat' and 'pith run --chat'; --protect keeps any tokens exact "
           "under every policy"},
    Answer{"-fa --flash-attn",
           "attention never stores the matrix of scores, on either device; leave the option out"},
    Answer{"--mlock --no-mmap", "weights are mapped from their file; leave the option out"},
    Answer{"-b --batch-size", "a prompt is read in chunks of -ub tokens; give that"},
    Answer{"--keep", "--kv-sink-tokens keeps the first tokens, --protect any others"},
};

bool holds(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

}  // namespace

std::string_view instead_of(std::string_view option) {
  const std::string_view name = option.substr(0, option.find('='));
  for (const Answer& a : kAnswers)
    if (holds(a.names, name)) return a.instead;
  return {};
}

std::string instead_of_type(std::string_view option, std::string_view type) {
  const std::string_view codec = type == "q8_0" || type == "q5_0" || type == "q5_1"     ? "int8"
                                 : type == "q4_0" || type == "q4_1" || type == "iq4_nl" ? "int4"
                                                                                        : "";
  if (codec.empty()) return {};
  const bool keys = option.ends_with('k');
  return fmt::format(
      "{} is said with a codec of the policy: --kv-policy 'exact+{}:{}', or 'exact+{}' for keys "
      "and values",
      type, keys ? 'k' : 'v', codec, codec);
}

}  // namespace pith::cli
