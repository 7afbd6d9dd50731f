// The presets of this build. Made by tools/results_presets.py from
// docs/results/scoreboard.jsonl: run it again rather than edit.

#include "session/presets_table.h"

namespace pith {

const std::string_view kPresetTable = R"table(
{"policy": "exact", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0, 0.0], "bits": 16.0, "facts": 0.958333}
{"policy": "exact+int8", "model": "demo", "context": 2048, "seeds": 1, "kl": [9.97247e-06, 1.38742e-06], "bits": 8.96898, "facts": 0.958333}
{"policy": "exact+kivi(bits=4)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.00137127, 0.000202273], "bits": 5.86163, "facts": 1.0}
{"policy": "exact+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.00267653, 0.000724059], "bits": 5.2191, "facts": 1.0}
{"policy": "exact+turboquant(bits=3,center=128)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.00434671, 0.000926325], "bits": 4.60357, "facts": 0.833333}
{"policy": "exact+int4", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.00482406, 0.000883], "bits": 5.2191, "facts": 0.916667}
{"policy": "expected_attention(budget=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.00939327, 0.00416069], "bits": 12.209, "facts": 0.0}
{"policy": "streaming_llm(window=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0125798, 0.00288707], "bits": 8.03517, "facts": 0.416667}
{"policy": "buzz(T=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0129294, 0.00391508], "bits": 9.86663, "facts": 0.5}
{"policy": "buzz(T=50%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0139345, 0.0038666], "bits": 4.42843, "facts": 0.458333}
{"policy": "exact+kvquant(bits=3)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0139888, 0.00154774], "bits": 4.59502, "facts": 0.333333}
{"policy": "snapkv(budget=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0157609, 0.00604381], "bits": 10.8175, "facts": 0.0}
{"policy": "snapkv(budget=50%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0181203, 0.00540918], "bits": 3.63214, "facts": 0.0}
{"policy": "exact+gear(bits=2)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0292085, 0.0021383], "bits": 5.94284, "facts": 0.833333}
{"policy": "exact+turboquant(bits=2,center=128)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0327271, 0.00725529], "bits": 3.70469, "facts": 0.625}
{"policy": "balancekv(budget=50%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0331974, 0.0161623], "bits": 9.26246, "facts": 0.0833333}
{"policy": "expected_attention(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.034633, 0.00984859], "bits": 3.83549, "facts": 0.0}
{"policy": "snapkv(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0365943, 0.0104257], "bits": 6.69052, "facts": 0.0}
{"policy": "snapkv(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0391469, 0.0103228], "bits": 2.38153, "facts": 0.0}
{"policy": "expected_attention(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0395732, 0.0127542], "bits": 8.14448, "facts": 0.0}
{"policy": "h2o(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0398831, 0.00920343], "bits": 6.69052, "facts": 0.0}
{"policy": "pyramidkv(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0404701, 0.0110937], "bits": 6.69052, "facts": 0.0}
{"policy": "exact+qjl(m=256)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.042478, 0.00469064], "bits": 6.45713, "facts": 0.541667}
{"policy": "express(s=50%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0455146, 0.0152487], "bits": 7.19907, "facts": 0.0694444}
{"policy": "buzz(T=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0614773, 0.0185406], "bits": 3.64387, "facts": 0.166667}
{"policy": "express(s=25%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0639319, 0.0133287], "bits": 5.65144, "facts": 0.0277778}
{"policy": "exact+kivi(bits=2)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0648071, 0.00870976], "bits": 4.01698, "facts": 0.416667}
{"policy": "streaming_llm(window=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0652515, 0.0146586], "bits": 4.03322, "facts": 0.25}
{"policy": "express(s=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0658231, 0.0124478], "bits": 2.08403, "facts": 0.0277778}
{"policy": "tova(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0681718, 0.0196984], "bits": 6.1904, "facts": 0.0}
{"policy": "expected_attention(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.068839, 0.0162475], "bits": 6.11224, "facts": 0.0}
{"policy": "balancekv(budget=25%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0691104, 0.0198919], "bits": 6.1672, "facts": 0.111111}
{"policy": "balancekv(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0695572, 0.00838605], "bits": 2.24023, "facts": 0.0833333}
{"policy": "exact+qjl", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0697116, 0.0109245], "bits": 5.03456, "facts": 0.444444}
{"policy": "keydiff(budget=50%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0770841, 0.0180921], "bits": 10.6848, "facts": 0.875}
{"policy": "snapkv(budget=50%)+kivi(bits=2)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.0844988, 0.0109203], "bits": 3.00639, "facts": 0.0}
{"policy": "exact+csr(s=8)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0873349, 0.00165082], "bits": 6.33903, "facts": 0.305556}
{"policy": "balancekv(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0963047, 0.0260211], "bits": 5.13544, "facts": 0.0694444}
{"policy": "uniform(budget=25%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.0974347, 0.0275999], "bits": 4.59624, "facts": 0.0}
{"policy": "keydiff(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.102563, 0.018744], "bits": 6.6203, "facts": 1.0}
{"policy": "snapkv(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.104255, 0.0278569], "bits": 4.62702, "facts": 0.0}
{"policy": "keydiff(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.105797, 0.0188405], "bits": 2.31131, "facts": 0.916667}
{"policy": "snapkv(budget=12.5%)+int4(hadamard=true)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.106825, 0.0283899], "bits": 1.75623, "facts": 0.0}
{"policy": "buzz(T=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.122296, 0.0311958], "bits": 3.75672, "facts": 0.125}
{"policy": "keydiff(budget=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.132159, 0.021182], "bits": 4.58806, "facts": 0.625}
{"policy": "exact+csr(s=4)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.147385, 0.0012246], "bits": 4.47875, "facts": 0.0833333}
{"policy": "knorm(budget=25%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.153097, 0.031544], "bits": 6.6203, "facts": 0.0}
{"policy": "streaming_llm(window=12.5%)", "model": "demo", "context": 2048, "seeds": 1, "kl": [0.162298, 0.0315505], "bits": 2.03224, "facts": 0.125}
{"policy": "exact+csr(s=2)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.189916, 0.0013004], "bits": 3.54861, "facts": 0.0416667}
{"policy": "express(s=12.5%)", "model": "demo", "context": 2048, "seeds": 3, "kl": [0.219826, 0.0126641], "bits": 2.36273, "facts": 0.0}
{"policy": "exact", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0, 0.0], "bits": 16.0, "facts": 0.875}
{"policy": "exact+int8", "model": "demo", "context": 8192, "seeds": 1, "kl": [1.24907e-05, 3.28536e-06], "bits": 8.6172, "facts": 0.875}
{"policy": "exact+kivi(bits=4)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.00153322, 0.000239184], "bits": 5.22119, "facts": 0.875}
{"policy": "streaming_llm(window=50%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.00209672, 0.000198008], "bits": 8.00879, "facts": 0.5}
{"policy": "snapkv(budget=50%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.00280935, 0.000559262], "bits": 8.89165, "facts": 0.0}
{"policy": "exact+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0031435, 0.000681266], "bits": 4.67971, "facts": 0.75}
{"policy": "exact+int4", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.00446582, 0.000752528], "bits": 4.67971, "facts": 0.625}
{"policy": "snapkv(budget=50%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.00578172, 0.000812141], "bits": 2.78293, "facts": 0.0}
{"policy": "expected_attention(budget=50%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.00707458, 0.00160138], "bits": 9.14562, "facts": 0.0}
{"policy": "exact+turboquant(bits=3,center=128)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.00783699, 0.00153901], "bits": 3.63661, "facts": 0.625}
{"policy": "express(s=50%)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0113513, 0.00102838], "bits": 7.21383, "facts": 0.125}
{"policy": "snapkv(budget=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0124678, 0.00254999], "bits": 4.76615, "facts": 0.0}
{"policy": "streaming_llm(window=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0131664, 0.00184701], "bits": 4.0083, "facts": 0.25}
{"policy": "tova(budget=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0161007, 0.00407688], "bits": 4.64116, "facts": 0.125}
{"policy": "snapkv(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0175863, 0.00419717], "bits": 1.53278, "facts": 0.0}
{"policy": "expected_attention(budget=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0217403, 0.0043399], "bits": 5.08262, "facts": 0.0}
{"policy": "exact+kvquant(bits=3)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0220404, 0.00399406], "bits": 3.86742, "facts": 0.125}
{"policy": "expected_attention(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0239291, 0.00445618], "bits": 1.84926, "facts": 0.0}
{"policy": "buzz(T=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0293829, 0.00590371], "bits": 3.65828, "facts": 0.125}
{"policy": "exact+turboquant(bits=2,center=128)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.035388, 0.00741781], "bits": 2.66188, "facts": 0.5}
{"policy": "balancekv(budget=50%)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0385508, 0.00507125], "bits": 8.50302, "facts": 0.0}
{"policy": "exact+gear(bits=2)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0400342, 0.00744354], "bits": 4.86937, "facts": 0.583333}
{"policy": "express(s=25%)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0413288, 0.0121356], "bits": 5.66677, "facts": 0.0}
{"policy": "streaming_llm(window=12.5%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0433524, 0.00632284], "bits": 2.00806, "facts": 0.125}
{"policy": "express(s=25%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0445207, 0.00682507], "bits": 1.81004, "facts": 0.0}
{"policy": "snapkv(budget=12.5%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0465989, 0.0101687], "bits": 2.70339, "facts": 0.0}
{"policy": "exact+qjl(m=256)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0494234, 0.00894756], "bits": 4.83088, "facts": 0.166667}
{"policy": "expected_attention(budget=12.5%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0500197, 0.0105266], "bits": 3.05112, "facts": 0.0}
{"policy": "snapkv(budget=12.5%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0504542, 0.0104358], "bits": 0.907704, "facts": 0.0}
{"policy": "exact+kivi(bits=2)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0616519, 0.00836643], "bits": 3.26001, "facts": 0.125}
{"policy": "snapkv(budget=50%)+kivi(bits=2)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0634443, 0.00737652], "bits": 2.17962, "facts": 0.0}
{"policy": "h2o(budget=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0746724, 0.0175608], "bits": 4.76615, "facts": 0.0}
{"policy": "balancekv(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0746772, 0.00816073], "bits": 1.49747, "facts": 0.0}
{"policy": "balancekv(budget=25%)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0778723, 0.0116956], "bits": 4.63536, "facts": 0.0}
{"policy": "exact+qjl", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.0824863, 0.0140649], "bits": 3.72528, "facts": 0.458333}
{"policy": "keydiff(budget=50%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0862335, 0.0134183], "bits": 8.76471, "facts": 0.875}
{"policy": "balancekv(budget=12.5%)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.095542, 0.00403919], "bits": 2.83045, "facts": 0.0}
{"policy": "buzz(T=50%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.0976209, 0.0255407], "bits": 3.51526, "facts": 0.125}
{"policy": "buzz(T=50%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.100084, 0.0256339], "bits": 1.42473, "facts": 0.125}
{"policy": "buzz(T=12.5%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.102484, 0.0254973], "bits": 2.15151, "facts": 0.125}
{"policy": "express(s=12.5%)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.117443, 0.0212724], "bits": 2.05695, "facts": 0.0}
{"policy": "exact+csr(s=8)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.130228, 0.00263677], "bits": 4.58454, "facts": 0.0}
{"policy": "keydiff(budget=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.134445, 0.0204016], "bits": 4.70172, "facts": 0.75}
{"policy": "keydiff(budget=25%)+int4(hadamard=true)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.143788, 0.0222238], "bits": 1.46835, "facts": 0.625}
{"policy": "uniform(budget=25%)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.151971, 0.0283358], "bits": 4.19589, "facts": 0.0}
{"policy": "pyramidkv(budget=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.184125, 0.0339146], "bits": 4.76615, "facts": 0.0}
{"policy": "exact+csr(s=4)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.194697, 0.00260364], "bits": 2.61946, "facts": 0.0}
{"policy": "keydiff(budget=12.5%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.19476, 0.0265046], "bits": 2.67022, "facts": 0.75}
{"policy": "knorm(budget=25%)", "model": "demo", "context": 8192, "seeds": 1, "kl": [0.202083, 0.0432458], "bits": 4.70172, "facts": 0.0}
{"policy": "exact+csr(s=2)", "model": "demo", "context": 8192, "seeds": 3, "kl": [0.225241, 0.00237463], "bits": 1.63692, "facts": 0.0}
)table";

}  // namespace pith
