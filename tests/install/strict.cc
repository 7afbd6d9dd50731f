// A user's translation unit under strict warnings: every public header, and options that name one
// member each. install_test.sh compiles it with g++ and clang++ in C++20 and C++23.
#include "pith/attention_error.h"
#include "pith/chat.h"
#include "pith/device.h"
#include "pith/dtype.h"
#include "pith/engine.h"
#include "pith/error.h"
#include "pith/form.h"
#include "pith/generate.h"
#include "pith/isa.h"
#include "pith/layer_cache.h"
#include "pith/ledger.h"
#include "pith/model.h"
#include "pith/nearest.h"
#include "pith/own_codec.h"
#include "pith/own_selector.h"
#include "pith/pith.h"
#include "pith/pith_chat.h"
#include "pith/pith_extend.h"
#include "pith/pith_layer.h"
#include "pith/pith_prefix.h"
#include "pith/policy.h"
#include "pith/prefix_tree.h"
#include "pith/presets.h"
#include "pith/rows.h"
#include "pith/runtime.h"
#include "pith/saved.h"
#include "pith/session.h"
#include "pith/tokenizer.h"
#include "pith/utf8.h"
#include "pith/version.h"

static_assert(PITH_VERSION_NUMBER >= 100 && PITH_VERSION_MAJOR == 0);

int main() {
  const pith::EngineOptions engine{.threads = 2};
  const pith::EngineOptions device{.device = pith::Device::kCpu};
  const pith::SessionOptions session{.context = 64};
  const pith::StandaloneOptions both{{.seed = 1}, {.chunk = 8}};
  const pith::SaveOptions save{.replace = true};
  const pith::ErrorProbeOptions probe{.rows = 1};
  const pith::AttentionError error{.layer = 1};
  const pith::ChatRequest request{.messages = "[]"};
  const pith::ChatRun run{.text = "x"};
  const pith::ChatTurnEnd end{.tokens = {1}};
  const pith::Work work{.append = pith::Append::kMore};
  const pith::SamplingOptions sampling{.temperature = 0};
  const pith::GenerateOptions generate{.max_tokens = 1};
  const pith::GenerateResult result{.text = "x"};
  const pith::RuntimeOptions runtime{.threads = 1};
  const pith::RowsView view{.dtype = pith::DType::kF16};
  const pith::RowsOut out{.token_stride = 1};
  const pith::LayerCacheOptions layer{.query_heads = 1};
  const pith::ModelConfig config{.layers = 1};
  const pith::PolicyPart part{.name = "exact"};
  const pith::PolicyRule rule{.sink = 1};
  const pith::ParameterInfo parameter{.name = "x"};
  const pith::MethodInfo method{.name = "x"};
  const pith::PrefixTreeOptions tree{.answers = 1};
  const pith::Prompt prompt{.tenant = "x"};
  const pith::Reuse reuse{.tokens = 1};
  const pith::Preset preset{.policy = "exact"};
  const pith::HeadRows rows{.positions = {1}};
  const pith::SavedSession saved{.version = 1};
  const pith::Sampler::Candidate candidate{.logit = 1, .id = 2};
  const pith::OwnSelector own{.name = "x"};
  const pith::RowsToScore to_score{.rows = 1};
  const pith::Ledger ledger{.payload = 1};
  return static_cast<int>(engine.chunk + device.chunk + session.context + both.chunk + probe.every +
                          error.steps + run.text.size() + end.tokens.size() + work.tokens.size() +
                          generate.stop.size() + result.tokens.size() + layer.context +
                          config.eos.size() + part.parameters.size() + rule.layers.size() +
                          parameter.help.size() + method.parameters.size() + tree.max_bytes +
                          prompt.tokens.size() + reuse.tokens + preset.seeds + rows.roles.size() +
                          saved.bytes + ledger.total_bytes() + own.queries + to_score.rows) +
         sampling.top_k + runtime.threads + candidate.id + save.replace +
         static_cast<int>(request.tools.size()) +
         static_cast<int>(view.head_stride + out.head_stride);
}
