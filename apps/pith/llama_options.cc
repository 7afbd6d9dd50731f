#include "llama_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include <CLI/CLI.hpp>

#include "console.h"

namespace pith::cli {
namespace {

enum class Takes { kNothing, kValue, kSwitch };  // a switch: on, off, auto, or nothing

struct Known {
  std::string_view names;  // separated by blanks
  Takes takes = Takes::kNothing;
  bool ignored = false;
  std::string_view words = "";    // what there is instead
  std::string_view command = "";  // of this one alone
};

constexpr Takes kNothing = Takes::kNothing, kValue = Takes::kValue, kSwitch = Takes::kSwitch;
constexpr std::string_view kSampling =
    "tokens are drawn by --temp, --top-k, --top-p, --min-p and penalties";
constexpr std::string_view kRope = "a model's own scaling of positions is used";

constexpr std::array kOptions{
    // No answer depends on these.
    Known{"-ngl --gpu-layers --n-gpu-layers", kValue, true, "a GPU is --device cuda"},
    Known{"-sm --split-mode -ts --tensor-split -mg --main-gpu -ot --override-tensor -ncmoe "
          "--n-cpu-moe -b --batch-size -tb --threads-batch --poll --poll-batch --prio --prio-batch "
          "-C --cpu-mask -Cr --cpu-range --cpu-strict --numa -dt --defrag-thold -lv --verbosity "
          "--log-verbosity",
          kValue, true},
    Known{"-md --model-draft -ngld --gpu-layers-draft --draft --draft-n --draft-max --draft-min "
          "--draft-p-min -devd --device-draft -cd --ctx-size-draft -ctkd -ctvd -td -tbd",
          kValue, true, "there are no draft models"},
    Known{"-fa --flash-attn -co --color --log-colors", kSwitch, true},
    Known{"-nkvo --no-kv-offload -kvo --kv-offload -cmoe --cpu-moe --op-offload --no-op-offload "
          "-nr --no-repack --repack --no-host --mlock --mmap --no-mmap -dio --direct-io "
          "--no-direct-io --jinja --warmup --no-warmup --perf --no-perf --offline --simple-io "
          "--log-disable --log-prefix --log-timestamps -kvu --kv-unified --swa-full -cb "
          "--cont-batching --no-context-shift --check-tensors --no-mmproj",
          kNothing, true},
    Known{"--verbose-prompt", kNothing, true, "'pith template' shows a prompt's tokens"},
    Known{"-cnv --conversation", kNothing, true},
    // An answer would be another, or it would not be what was asked for.
    Known{"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url", kValue, false,
          "give -m a folder, a GGUF file, or a name of 'pith pull'; other models: "
          "huggingface-cli download REPO --local-dir FOLDER"},
    Known{"-no-cnv --no-conversation", kNothing, false, "'pith run' completes a text", "chat"},
    Known{"-no-cnv --no-conversation", kNothing, true},
    Known{"--no-jinja", kNothing, false, "--chat-template NAME chooses another template", "chat"},
    Known{"-st --single-turn", kNothing, false, "'pith run --chat' answers one message"},
    Known{"--keep", kValue, false, "--kv-sink-tokens keeps the first tokens, --protect any others"},
    Known{"--context-shift", kNothing, false,
          "--kv-policy streaming_llm(window=N) lets old tokens go"},
    Known{"-gan --grp-attn-n -gaw --grp-attn-w --rope-scaling --rope-scale --rope-freq-base "
          "--rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor "
          "--yarn-beta-slow --yarn-beta-fast",
          kValue, false, kRope},
    Known{"--samplers --sampling-seq --sampler-seq --mirostat --mirostat-lr --mirostat-ent "
          "--typical --typical-p --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold "
          "--dynatemp-range --dynatemp-exp --dry-multiplier --dry-base --dry-allowed-length "
          "--dry-penalty-last-n --dry-sequence-breaker --tfs --adaptive-target --adaptive-decay",
          kValue, false, kSampling},
    Known{"--grammar --grammar-file -j", kValue, false,
          "--json-schema FILE holds an answer to a schema"},
    Known{"--lora --lora-scaled --control-vector --control-vector-scaled", kValue, false,
          "merge an adapter into the model's files first"},
    Known{"-mm --mmproj --image --audio", kValue, false, "models read text alone"},
    Known{"-bf --binary-file", kValue, false, "a prompt is UTF-8 text: -f FILE"},
    Known{"-dev --device-list --rpc", kValue, false,
          "a model runs whole on one device: --device cuda or --device cpu"},
    Known{"--prompt-cache-all", kNothing, false, "--session-save FILE saves the answer as well"},
    Known{"--prompt-cache-ro", kNothing, false, "--session-load FILE changes no file"},
    Known{"--in-prefix --in-suffix", kValue, false, "'pith chat' writes the template's text"},
    Known{"-if --interactive-first -mli --multiline-input --in-prefix-bos", kNothing, false,
          "'pith run -i' and 'pith chat' read lines"},
    Known{"-sp --special", kNothing, false, "special tokens are not printed"},
    Known{"--reasoning-format --reasoning-budget", kValue, false,
          "--chat-template-kwargs '{\"enable_thinking\": false}' sets a template's variables"},
    Known{
        "--override-kv", kValue, false,
        "a file's keys are read as they are; 'gguf-new-metadata --pre-tokenizer NAME' of the gguf "
        "package writes it anew"},
    Known{"--log-file", kValue, false, "standard error has it: 2> FILE"}};

bool holds(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

bool is_switch(std::string_view text) {
  return holds("on off auto 0 1 true false enabled disabled", text);
}

}  // namespace

size_t LlamaOptions::take(std::span<const std::string> arguments) {
  const std::string& given = arguments[0];
  const std::string name = given.substr(0, given.find('='));
  for (const Known& option : kOptions) {
    if (!holds(option.names, name) || !(option.command.empty() || option.command == command_))
      continue;
    const bool more = given == name && arguments.size() > 1;
    const bool valued =
        more && (option.takes == kValue || (option.takes == kSwitch && is_switch(arguments[1])));
    const std::string shown = valued ? given + " " + arguments[1] : given;
    (option.ignored ? ignored_ : refused_)
        .push_back(option.words.empty() ? shown : fmt::format("{} ({})", shown, option.words));
    return valued ? 2 : 1;
  }
  return 0;
}

void LlamaOptions::settle() const {
  if (!refused_.empty())
    throw CLI::ValidationError("not supported", fmt::format("{}", fmt::join(refused_, "; ")));
  if (!ignored_.empty())
    say(fmt::format("pith: warning: ignored, as no answer depends on {}: {}",
                    ignored_.size() == 1 ? "it" : "them", fmt::join(ignored_, ", ")));
}

const char* codec_of_type(std::string_view type) {
  return type == "q8_0" ? "int8" : type == "q4_0" ? "int4" : nullptr;
}

std::string instead_of_type(std::string_view option, std::string_view type) {
  const std::string_view codec = type == "q5_0" || type == "q5_1"     ? "int8"
                                 : type == "q4_1" || type == "iq4_nl" ? "int4"
                                                                      : "";
  if (codec.empty()) return {};
  return fmt::format(
      "{} has no codec like it: q8_0 and q4_0 stand for int8 and int4, and --kv-policy "
      "'exact+{}:{}' names one",
      type, option.ends_with('k') ? 'k' : 'v', codec);
}

}  // namespace pith::cli
