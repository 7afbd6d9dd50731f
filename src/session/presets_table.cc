// The presets of this build. Made by tools/results_presets.py from
// docs/results/fidelity.jsonl: run it again rather than edit.

#include "session/presets_table.h"

namespace pith {

const std::string_view kPresetTable = R"table(
{"policy": "exact", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0, 0.0], "bits": 16.0, "facts": 1.0}
{"policy": "exact+int8", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [4.05744e-05, 2.72589e-06], "bits": 8.64908, "facts": 1.0}
{"policy": "exact+kivi(bits=4)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.00300939, 0.00014358], "bits": 5.21865, "facts": 0.9375}
{"policy": "exact+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.00335083, 0.000194219], "bits": 4.72859, "facts": 1.0}
{"policy": "exact+int4", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.00950714, 0.000368144], "bits": 4.72859, "facts": 1.0}
{"policy": "balancekv(heavy=12.5%,heavy_keys=0.5,rate=0.25)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0104226, 0.000754839], "bits": 1.95105, "facts": 0.9375}
{"policy": "exact+turboquant(bits=4,center=128)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.010449, 0.000400033], "bits": 4.59157, "facts": 0.9375}
{"policy": "express(heavy=25%,heavy_keys=0.5,s=12.8%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0116195, 0.000894995], "bits": 1.83201, "facts": 0.875}
{"policy": "balancekv(heavy=12.5%,heavy_keys=0.5,rate=0.125)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0127909, 0.000907263], "bits": 4.35176, "facts": 0.9375}
{"policy": "express(heavy=12.5%,heavy_keys=0,s=12.8%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0133234, 0.00189024], "bits": 3.715, "facts": 0.0625}
{"policy": "express(heavy=12.5%,heavy_keys=0.5,s=12.8%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0137226, 0.000159934], "bits": 3.715, "facts": 0.875}
{"policy": "balancekv(heavy=12.5%,heavy_keys=0.5,rate=0.125)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0138728, 0.00104113], "bits": 1.46298, "facts": 0.8125}
{"policy": "buzz(T=40%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0149573, 0.00300113], "bits": 6.0461, "facts": 0.25}
{"policy": "express(heavy=12.5%,heavy_keys=0.5,s=12.8%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0150256, 0.000409559], "bits": 1.26519, "facts": 0.875}
{"policy": "express(s=25.6%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0158902, 0.0024219], "bits": 5.48753, "facts": 0.1875}
{"policy": "expected_attention(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0168281, 0.0028129], "bits": 4.44927, "facts": 0.0625}
{"policy": "snapkv(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0172892, 0.0030238], "bits": 4.1157, "facts": 0.0625}
{"policy": "snapkv(budget=25%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0189418, 0.00305444], "bits": 1.35536, "facts": 0.0625}
{"policy": "streaming_llm(window=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0208278, 0.0031854], "bits": 4.0085, "facts": 0.25}
{"policy": "buzz(T=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0224358, 0.00326603], "bits": 3.62442, "facts": 0.0625}
{"policy": "balancekv(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.025305, 0.00193333], "bits": 4.53857, "facts": 0.0625}
{"policy": "express(heavy=5.5%,heavy_keys=0.5,s=6.4%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0268816, 0.00055365], "bits": 0.819634, "facts": 0.6875}
{"policy": "keydiff(budget=25%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0363926, 0.00305469], "bits": 1.29288, "facts": 0.8125}
{"policy": "keydiff(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0366075, 0.00330367], "bits": 4.05323, "facts": 0.9375}
{"policy": "exact+turboquant(bits=3,center=128)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0383694, 0.0015076], "bits": 3.61545, "facts": 0.875}
{"policy": "uniform(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0527437, 0.00563369], "bits": 4.26103, "facts": 0.0}
{"policy": "exact+kivi(bits=2)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.191518, 0.00763736], "bits": 3.25841, "facts": 0.25}
{"policy": "exact+qjl", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.64236, 0.0125048], "bits": 4.09364, "facts": 0.0}
)table";

}  // namespace pith
