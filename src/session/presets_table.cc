// The presets of this build. Made by tools/results_presets.py from
// docs/results/fidelity.jsonl: run it again rather than edit.

#include "session/presets_table.h"

namespace pith {

const std::string_view kPresetTable = R"table(
{"policy": "exact", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0, 0.0], "bits": 16.0, "facts": 1.0}
{"policy": "exact+int8", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [4.1e-05, 2.7e-06], "bits": 8.65, "facts": 1.0}
{"policy": "exact+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.00233, 0.00015], "bits": 4.69, "facts": 1.0}
{"policy": "exact+qjl", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 3, "kl": [0.00458558, 0.00020457], "bits": 3.49344, "facts": 0.96875}
{"policy": "exact+turboquant(bits=3,center=128)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.00481035, 0.00025786], "bits": 3.61545, "facts": 1.0}
{"policy": "exact+int4", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.00519, 0.0003], "bits": 4.69, "facts": 1.0}
{"policy": "express(heavy=25%,s=12.8%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0123854, 0.00133129], "bits": 1.62998, "facts": 1.0}
{"policy": "express(heavy=12.5%,s=12.8%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0145158, 0.00186302], "bits": 3.58498, "facts": 0.8125}
{"policy": "balancekv(heavy=12.5%,rate=0.125)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0145391, 0.00112393], "bits": 1.46298, "facts": 1.0}
{"policy": "buzz(T=40%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0149573, 0.00300113], "bits": 6.0461, "facts": 0.1953125}
{"policy": "express(heavy=12.5%,s=12.8%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.015769, 0.000924653], "bits": 1.22718, "facts": 0.8125}
{"policy": "express(heavy=0,s=25.6%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0158902, 0.0024219], "bits": 5.48753, "facts": 0.1875}
{"policy": "express(heavy=12.5%,heavy_keys=0,s=12.8%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0161014, 0.00144669], "bits": 3.58498, "facts": 0.0625}
{"policy": "expected_attention(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0168281, 0.0028129], "bits": 4.44927, "facts": 0.0625}
{"policy": "snapkv(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0172892, 0.0030238], "bits": 4.1157, "facts": 0.0625}
{"policy": "snapkv(budget=25%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0189418, 0.00305444], "bits": 1.35536, "facts": 0.0625}
{"policy": "streaming_llm(window=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0208278, 0.0031854], "bits": 4.0085, "facts": 0.25}
{"policy": "buzz(T=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0224358, 0.00326603], "bits": 3.62442, "facts": 0.0625}
{"policy": "balancekv(heavy=0,rate=0.25)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.025305, 0.00193333], "bits": 4.53857, "facts": 0.0625}
{"policy": "exact+turboquant(bits=2,center=128)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0257, 0.0018], "bits": 2.64, "facts": 0.875}
{"policy": "express(heavy=5.5%,s=6.4%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0281222, 0.00114476], "bits": 0.779629, "facts": 0.625}
{"policy": "keydiff(budget=25%)+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0363926, 0.00305469], "bits": 1.29288, "facts": 0.8125}
{"policy": "keydiff(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 1, "kl": [0.0366075, 0.00330367], "bits": 4.05323, "facts": 0.9375}
{"policy": "uniform(budget=25%)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 2, "kl": [0.0527437, 0.00563369], "bits": 4.26103, "facts": 0.0}
)table";

const std::string_view kTunedPresetTable = R"table(
{"policy": "express(heavy=6.25%,s=3.2%)+int4(hadamard=true);layers=1,9,25,29:express(heavy=12.5%,s=6.4%)+int4(hadamard=true);layers=18/heads=1:express(heavy=12.5%,s=6.4%)+int4(hadamard=true);layers=18/heads=0:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=2,5,15,19,22,26,28:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=24/heads=1:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=8/heads=1-2:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=14,17/heads=2:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=8/heads=0:exact+int4(hadamard=true);layers=14,17/heads=0-1:exact+int4(hadamard=true);layers=7,20-21,23:exact+int4(hadamard=true);layers=24/heads=0,2:exact+int4(hadamard=true);layers=18/heads=2:exact+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 3, "kl": [0.00544976, 0.000779729], "bits": 1.87712, "facts": 1.0, "model_fingerprint": "14fe958cb8d066e3"}
{"policy": "express(heavy=3.2%,s=1.6%)+int4(hadamard=true);layers=18/heads=0-1:express(heavy=6.25%,s=3.2%)+int4(hadamard=true);layers=2,5,28-29:express(heavy=6.25%,s=3.2%)+int4(hadamard=true);layers=8/heads=1-2:express(heavy=6.25%,s=3.2%)+int4(hadamard=true);layers=14,17/heads=2:express(heavy=6.25%,s=3.2%)+int4(hadamard=true);layers=19,22:express(heavy=12.5%,s=6.4%)+int4(hadamard=true);layers=7-8,14,17,20/heads=0:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=24/heads=0-1:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=15,21,26:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=23/heads=1:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=23/heads=0,2:exact+int4(hadamard=true);layers=14,17/heads=1:exact+int4(hadamard=true);layers=7,20/heads=1-2:exact+int4(hadamard=true);layers=18,24/heads=2:exact+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 3, "kl": [0.0114407, 0.000660091], "bits": 1.19935, "facts": 0.96875, "model_fingerprint": "14fe958cb8d066e3"}
{"policy": "express(heavy=3.2%,s=1.6%)+int4(hadamard=true);layers=15,22,26:express(heavy=6.25%,s=3.2%)+int4(hadamard=true);layers=24/heads=1:express(heavy=6.25%,s=3.2%)+int4(hadamard=true);layers=7,14,17/heads=0:express(heavy=12.5%,s=6.4%)+int4(hadamard=true);layers=21,23/heads=1:express(heavy=12.5%,s=6.4%)+int4(hadamard=true);layers=8/heads=0:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=20:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=21,24/heads=0,2:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=7,14,17/heads=1:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=23/heads=2:express(heavy=25%,s=12.8%)+int4(hadamard=true);layers=23/heads=0:exact+int4(hadamard=true);layers=7,18/heads=2:exact+int4(hadamard=true)", "model": "SmolLM2-135M-Instruct.Q4_1.gguf", "context": 8000, "seeds": 3, "kl": [0.0217324, 0.00100413], "bits": 0.780356, "facts": 0.90625, "model_fingerprint": "14fe958cb8d066e3"}
)table";

}  // namespace pith
