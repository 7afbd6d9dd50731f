// The presets of this build. Made by tools/results_presets.py from
// docs/results/scoreboard.jsonl: run it again rather than edit.

#include "session/presets_table.h"

namespace pith {

const std::string_view kPresetTable = R"table(
{"policy": "exact", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0, 0.0], "bits": 16.0, "facts": 0.958333}
{"policy": "exact+int8", "model": "demo", "context": 2048, "seeds": 1, "kl": [9.97387e-06, 1.38475e-06], "bits": 8.96898, "facts": 0.958333}
{"policy": "exact+kivi(bits=4)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0013713, 0.000202279], "bits": 5.86163, "facts": 1.0}
{"policy": "exact+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.00267832, 0.000724233], "bits": 5.2191, "facts": 1.0}
{"policy": "exact+int4", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0048272, 0.000883887], "bits": 5.2191, "facts": 0.916667}
{"policy": "expected_attention(budget=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.00939327, 0.00416069], "bits": 12.209, "facts": 0.0}
{"policy": "streaming_llm(window=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0125798, 0.00288707], "bits": 8.03517, "facts": 0.416667}
{"policy": "buzz(T=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0129294, 0.00391508], "bits": 9.86663, "facts": 0.5}
{"policy": "buzz(T=50%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.013936, 0.00386701], "bits": 4.42843, "facts": 0.458333}
{"policy": "snapkv(budget=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0157609, 0.00604381], "bits": 10.8175, "facts": 0.0}
{"policy": "snapkv(budget=50%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0181163, 0.00540848], "bits": 3.63214, "facts": 0.0}
{"policy": "balancekv(budget=50%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0331974, 0.0161623], "bits": 9.26246, "facts": 0.0833333}
{"policy": "expected_attention(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0346339, 0.00984743], "bits": 3.83549, "facts": 0.0}
{"policy": "snapkv(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0365943, 0.0104257], "bits": 6.69052, "facts": 0.0}
{"policy": "snapkv(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0391517, 0.0103215], "bits": 2.38153, "facts": 0.0}
{"policy": "expected_attention(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0395732, 0.0127542], "bits": 8.14448, "facts": 0.0}
{"policy": "h2o(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0398831, 0.00920343], "bits": 6.69052, "facts": 0.0}
{"policy": "pyramidkv(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0404701, 0.0110937], "bits": 6.69052, "facts": 0.0}
{"policy": "exact+qjl(m=256)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0424789, 0.00468945], "bits": 6.45713, "facts": 0.541667}
{"policy": "express(s=50%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0455146, 0.0152487], "bits": 7.19907, "facts": 0.0694444}
{"policy": "buzz(T=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0614773, 0.0185406], "bits": 3.64387, "facts": 0.166667}
{"policy": "express(s=25%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0639319, 0.0133287], "bits": 5.65144, "facts": 0.0277778}
{"policy": "exact+kivi(bits=2)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0648055, 0.00870935], "bits": 4.01698, "facts": 0.416667}
{"policy": "streaming_llm(window=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0652515, 0.0146586], "bits": 4.03322, "facts": 0.25}
{"policy": "express(s=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0657858, 0.0124202], "bits": 2.08403, "facts": 0.0277778}
{"policy": "tova(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0681718, 0.0196984], "bits": 6.1904, "facts": 0.0}
{"policy": "expected_attention(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.068839, 0.0162475], "bits": 6.11224, "facts": 0.0}
{"policy": "balancekv(budget=25%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0691104, 0.0198919], "bits": 6.1672, "facts": 0.111111}
{"policy": "balancekv(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0695723, 0.0083878], "bits": 2.24023, "facts": 0.0833333}
{"policy": "exact+qjl", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0697121, 0.0109278], "bits": 5.03456, "facts": 0.444444}
{"policy": "keydiff(budget=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0770841, 0.0180921], "bits": 10.6848, "facts": 0.875}
{"policy": "snapkv(budget=50%)+kivi(bits=2)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0844945, 0.0109207], "bits": 3.00639, "facts": 0.0}
{"policy": "exact+csr(s=8)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0873349, 0.00165082], "bits": 6.33903, "facts": 0.319444}
{"policy": "balancekv(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0963047, 0.0260211], "bits": 5.13544, "facts": 0.0694444}
{"policy": "uniform(budget=25%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0974347, 0.0275999], "bits": 4.59624, "facts": 0.0}
{"policy": "keydiff(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.102563, 0.018744], "bits": 6.6203, "facts": 1.0}
{"policy": "snapkv(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.104255, 0.0278569], "bits": 4.62702, "facts": 0.0}
{"policy": "keydiff(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.105817, 0.0188418], "bits": 2.31131, "facts": 0.916667}
{"policy": "snapkv(budget=12.5%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.106901, 0.0283939], "bits": 1.75623, "facts": 0.0}
{"policy": "buzz(T=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.122296, 0.0311958], "bits": 3.75672, "facts": 0.125}
{"policy": "keydiff(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.132159, 0.021182], "bits": 4.58806, "facts": 0.625}
{"policy": "knorm(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.153097, 0.031544], "bits": 6.6203, "facts": 0.0}
{"policy": "streaming_llm(window=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.162298, 0.0315505], "bits": 2.03224, "facts": 0.125}
{"policy": "exact+csr(s=2)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.189916, 0.0013004], "bits": 3.54861, "facts": 0.0416667}
{"policy": "express(s=12.5%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.219826, 0.0126641], "bits": 2.36273, "facts": 0.0}
)table";

}  // namespace pith
