// CSR with NeuralDict: Tables 3 and 4 (what parts and pairs do for keys and values), Table 5 (size
// of the dictionary), Figure 5 (memory against length), Table 1 (quality at 4 to 1 bits).
// Dictionaries are the prompt's own rows; with a trained one (--dict) pairs, memory and quality are
// its.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/thread_pool.h"
#include "model/forward.h"
#include "model/loaders/weights.h"
#include "policy/registry.h"
#include "tools/eval/reproduce_bench.h"
#include "tools/eval/reproduce_papers.h"
#include "tools/eval/reproductions.h"

namespace pith {
namespace {

/// Rows of all layers and KV heads: keys before RoPE, and values.
struct ModelRows {
  size_t dim = 0, tokens = 0, kv_heads = 0;
  std::vector<std::vector<float>> keys, values;  // [L * G][T, D]
};

ModelRows collect(const ReproduceBench& bench, size_t tokens) {
  const ReproduceOptions& o = bench.options();
  const ModelConfig& c = o.model->config();
  ThreadPool pool(o.session.threads);
  MemoryCounter memory(o.session.memory_limit);
  const Context context{pool, memory, kernels_for(o.session.isa)};
  const LayerRopes ropes = o.model->weights().ropes(tokens);
  ModelRows rows{static_cast<size_t>(c.head_dim), tokens, static_cast<size_t>(c.kv_heads), {}, {}};
  Forward forward(context, *o.model, tokens, MatmulPrecision::kF32);
  forward.set_observer([&](const LayerStep& step) {
    for (size_t g = 0; g < rows.kv_heads; ++g) {
      std::vector<float>& keys = rows.keys.emplace_back();
      std::vector<float>& values = rows.values.emplace_back();
      for (size_t t = 0; t < step.tokens; ++t) {
        const size_t at = (t * rows.kv_heads + g) * rows.dim;
        keys.insert(keys.end(), step.k + at, step.k + at + rows.dim);
        ropes.of(step.layer)
            ->rotate(context.kernels, keys.data() + t * rows.dim, -static_cast<int64_t>(t));
        values.insert(values.end(), step.v + at, step.v + at + rows.dim);
      }
    }
  });
  const CacheShape shape{c.layers, c.query_heads, c.kv_heads, c.head_dim, c.sliding_window, tokens};
  KvCache pass(context, shape, Policy::parse("local(window=1)"), 0, ropes);
  forward.run(pass, std::span(o.text).first(tokens), 0);
  return rows;
}

std::string online_atoms(size_t count) { return fmt::format("online={}", count); }
std::string trained_atoms(const std::string& file) { return fmt::format("online=0,dict={}", file); }

/// |x - coded x|^2 / |x|^2 over the rows after the first, mean over layers and heads.
double coding_error(const ReproduceBench& bench, const ModelRows& rows, Side side,
                    const std::string& parameters, size_t first) {
  const Policy policy = Policy::parse(fmt::format("exact+csr({})", parameters));
  const PolicyPart part = *policy.rules[0].key_codec;
  const CodecRow& row = codec_row(part.name);
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for(bench.options().session.isa)};
  const auto codec = row.make(row.read(part), side);
  double sum = 0;
  const auto& heads = side == Side::kKeys ? rows.keys : rows.values;
  const size_t block = codec->block_rows(), count = rows.tokens / block * block;
  for (size_t i = 0; i < heads.size(); ++i) {
    RowsRequest request;
    request.side = side, request.dim = rows.dim, request.seed = bench.options().session.seed;
    request.layer = static_cast<uint32_t>(i / rows.kv_heads);
    request.head = static_cast<uint32_t>(i % rows.kv_heads);
    request.model = bench.options().model->config().fingerprint;
    const auto coded = codec->make_rows(context, request);
    coded->append(heads[i].data(), rows.dim, count);
    std::vector<float> back(count * rows.dim);
    coded->decode(back.data(), 0, count);
    double error = 0, size = 0;
    for (size_t j = first * rows.dim; j < back.size(); ++j) {
      error += std::pow(double{back[j]} - heads[i][j], 2);
      size += double{heads[i][j]} * heads[i][j];
    }
    sum += error / size / static_cast<double>(heads.size());
  }
  return sum;
}

void tick(const ReproduceBench& bench, const char* stage, size_t done, size_t total) {
  const auto& progress = bench.options().progress;
  if (progress && !progress(stage, done, total)) throw ReproduceCancelled{};
}

void parts_table(const ReproduceBench& bench, const ModelRows& rows, size_t online) {
  const std::vector<size_t> pairs =
      bench.quick() ? std::vector<size_t>{4, 8} : std::vector<size_t>{4, 8, 16};
  ReproducedTable t;
  t.id = "parts", t.title = "Coding error by pairs and parts";
  t.source =
      "CSR, Tables 3 and 4 (Llama-2-7B-chat, loss of trained dictionaries of 8192 atoms per layer; "
      "its s counts the pairs of one part)";
  t.protocol = fmt::format(
      "|x - coded x|^2 / |x|^2 of keys before RoPE and of values, {} tokens, {} atoms of each KV "
      "head's own first rows, the others coded; pairs: of a part",
      rows.tokens, online);
  t.columns = {{"values", 4}, {"paper, values", 3, true}, {"keys", 4}, {"paper, keys", 3, true}};
  std::vector<double> values, keys;
  for (const size_t s : pairs)
    for (const size_t chunks : {size_t{1}, size_t{2}}) {
      const std::string parameters =
          fmt::format("s={},chunks={},{}", s * chunks, chunks, online_atoms(online));
      values.push_back(coding_error(bench, rows, Side::kValues, parameters, online));
      keys.push_back(coding_error(bench, rows, Side::kKeys, parameters, online));
      Cell paper_values, paper_keys;
      for (const auto& p : papers::kCsrLosses)
        if (p.pairs == s && p.parts == chunks)
          paper_values.value = p.values, paper_keys.value = p.keys;
      t.rows.push_back({fmt::format("s={}, {} part{}", s, chunks, chunks > 1 ? "s" : ""),
                        "",
                        {{values.back()}, paper_values, {keys.back()}, paper_keys}});
      tick(bench, "coding errors", t.rows.size(), 2 * pairs.size());
    }
  double value_gain = 0, key_gain = 0;
  std::vector<double> one_part[2];  // of the last comparison: values, keys
  for (size_t i = 0; i < values.size(); i += 2) {
    value_gain += 2 * (1 - values[i + 1] / values[i]) / static_cast<double>(values.size());
    key_gain += 2 * (1 - keys[i + 1] / keys[i]) / static_cast<double>(keys.size());
    one_part[0].push_back(values[i]), one_part[1].push_back(keys[i]);
  }
  const std::string& file = bench.options().dictionary;
  NamedPolicy ours{"", "csr", false, Form::kUntrained};
  if (!file.empty()) {  // as it was trained: keys whole, values in two parts
    ours = {"", fmt::format("csr({})", trained_atoms(file)), false, Form::kPaper};
    for (size_t i = 0; i < pairs.size(); ++i) {
      const size_t s = pairs[i];
      double* const errors[] = {&one_part[0][i], &one_part[1][i]};
      for (const Side side : {Side::kValues, Side::kKeys}) {
        const bool value = side == Side::kValues;
        *errors[value ? 0 : 1] =
            coding_error(bench, rows, side,
                         fmt::format("s={},{}", value ? 2 * s : s, trained_atoms(file)), online);
      }
      t.rows.push_back({fmt::format("s={}, trained", s),
                        ours.policy,
                        {{one_part[0][i]}, {}, {one_part[1][i]}, {}}});
    }
  }
  const bool falls = std::ranges::is_sorted(one_part[0], std::greater<>()) &&
                     std::ranges::is_sorted(one_part[1], std::greater<>());
  const NamedPolicy untrained{"", "csr(chunks=2)", false, Form::kUntrained};
  t.claims = {
      untrained.claim("two parts help values far more than keys",
                      fmt::format("they take {:.0f}% of the values' error and {:.0f}% of the keys'",
                                  100 * value_gain, 100 * key_gain),
                      value_gain > 2 * key_gain),
      ours.claim("more pairs, smaller errors", falls ? "at every step" : "not at every step",
                 falls),
      ours.claim(
          "values are harder than keys",
          fmt::format("error {:.3f} and {:.3f} at s={}", one_part[0][0], one_part[1][0], pairs[0]),
          one_part[0][0] > one_part[1][0])};
  bench.finish(t);
}

void size_table(const ReproduceBench& bench, const ModelRows& rows) {
  std::vector<size_t> sizes{64, 128, 256, 512};
  if (bench.quick()) sizes = {32, 64};
  ReproducedTable t;
  t.id = "size", t.title = "Coding error by the size of the dictionary";
  t.source = "CSR, Table 5 (Llama-3-8B-Instruct, trained atoms per layer of 8 KV heads)";
  t.protocol = fmt::format(
      "as above, keys with s=8, values with s=4 in each of two parts; atoms per KV head, {} tokens",
      rows.tokens);
  t.columns = {{"keys", 4}, {"paper, keys", 4, true}, {"values", 4}, {"paper, values", 4, true}};
  std::vector<double> keys, values;
  for (const size_t n : sizes) {
    const std::string atoms = online_atoms(n);
    keys.push_back(coding_error(bench, rows, Side::kKeys, "s=8,chunks=1," + atoms, n));
    values.push_back(coding_error(bench, rows, Side::kValues, "s=8,chunks=2," + atoms, n));
    Cell paper_keys, paper_values;
    for (const auto& p : papers::kCsrSizes)
      if (p.atoms == 8 * n) paper_keys.value = p.keys, paper_values.value = p.values;
    t.rows.push_back({fmt::format("{} atoms", n),
                      "",
                      {{keys.back()}, paper_keys, {values.back()}, paper_values}});
    tick(bench, "dictionaries", t.rows.size(), sizes.size());
  }
  const bool falls =
      std::is_sorted(keys.rbegin(), keys.rend()) && std::is_sorted(values.rbegin(), values.rend());
  const NamedPolicy untrained{"", "csr(s=8)", false, Form::kUntrained};
  t.claims = {untrained.claim("larger dictionaries, smaller errors, with falling returns",
                              fmt::format("keys {}; values {}", chain(keys, 3), chain(values, 3)),
                              falls)};
  bench.finish(t);
}

// Pairs that cost as many bits per channel as the paper's at 128 channels: 32 s / D.
size_t pairs_at(double bits, size_t dim) {
  return std::max<size_t>(1,
                          static_cast<size_t>(std::lround(bits * static_cast<double>(dim) / 32)));
}

/// csr with a trained dictionary, or with `online` rows of each head as atoms.
std::vector<NamedPolicy> at_bits(const ReproduceBench& bench, size_t dim, size_t online) {
  const std::string& file = bench.options().dictionary;
  const auto csr = [&](const char* name, double bits) {
    const std::string atoms = file.empty() ? online_atoms(online) : trained_atoms(file);
    return NamedPolicy{name,
                       fmt::format("exact+csr(s={},{}),window=32", pairs_at(bits, dim), atoms),
                       false, file.empty() ? Form::kUntrained : Form::kPaper};
  };
  std::vector<NamedPolicy> policies{{"exact", "exact"},
                                    {"kivi, 4 bits", "exact+kivi(bits=4),window=32"},
                                    {"gear, 4 bits", "exact+gear(bits=4),window=32"},
                                    csr("csr, 4 bits", 4),
                                    {"kivi, 2 bits", "exact+kivi(bits=2),window=32"},
                                    {"gear, 2 bits", "exact+gear(bits=2),window=32"},
                                    csr("csr, 2 bits", 2)};
  // Two parts of a value, as they are trained, share an even number of pairs.
  if (file.empty() || pairs_at(1.5, dim) % 2 == 0) policies.push_back(csr("csr, 1.5 bits", 1.5));
  policies.push_back(csr("csr, 1 bit", 1));
  return policies;
}

Ledger ledger_of(const ReproduceBench& bench, const NamedPolicy& policy, size_t tokens) {
  StandaloneOptions s = bench.options().session;
  s.policy = Policy::parse(policy.policy), s.context = tokens;
  return estimate_ledger(bench.options().model->config(), s, tokens);
}

void memory_table(const ReproduceBench& bench, size_t dim) {
  const std::vector<size_t> lengths{1024, 8192, 65536, 524288};
  ReproducedTable t;
  t.id = "memory", t.title = "Memory against length";
  t.source = "CSR, Figure 5 (an image: dictionaries are 'almost negligible')";
  t.protocol =
      "MB of the whole cache, codes, norms and dictionaries included, from the sizes alone; KIVI's "
      "bits do not count its scales: 3 and 5 with them";
  for (const size_t n : lengths) t.columns.push_back({fmt::format("{}K", n / 1024), 2});
  t.columns.push_back({"bits at the longest", 2});
  double around = 0;  // of the last policy, %: what is not codes
  const std::vector<NamedPolicy> policies = at_bits(bench, dim, 256);
  for (const NamedPolicy& p : policies) {
    TableRow row{p.name, p.policy, {}};
    for (const size_t n : lengths) {
      const Ledger l = ledger_of(bench, p, n);
      row.cells.push_back({static_cast<double>(l.cache_bytes()) / 1e6});
      if (n != lengths.back()) continue;
      row.cells.push_back({l.effective_bits()});
      const double codes = 32 * static_cast<double>(pairs_at(1, dim)) / static_cast<double>(dim);
      around = 100 * (1 - codes / l.effective_bits());
    }
    t.rows.push_back(std::move(row));
  }
  t.claims = {policies.back().claim(
      "the dictionaries are almost negligible",
      fmt::format("they and the exact rows are {:.1f}% of the 1-bit cache at {}K tokens", around,
                  lengths.back() / 1024),
      around < 5)};
  bench.finish(t);
}

void quality_table(const ReproduceBench& bench, size_t dim) {
  PerplexityOptions protocol;
  protocol.mode = PerplexityMode::kContinue, protocol.window = bench.quick() ? 320 : 2048;
  protocol.score = bench.quick() ? 12 : 128, protocol.pieces = bench.quick() ? 1 : 2;
  const std::vector<NamedPolicy> policies = at_bits(bench, dim, bench.quick() ? 64 : 256);
  const auto quality = bench.quality("quality", protocol, policies);
  ReproducedTable t;
  t.id = "quality", t.title = "Quality at 4 to 1 bits";
  t.source = "CSR, Table 1 (Llama-2-7B-chat, mean score on LongBench, trained dictionaries)";
  t.protocol = fmt::format(
      "{} tokens after a prompt, in pieces of {}; bits: the ledger's, dictionaries included, at "
      "that "
      "length",
      protocol.score * protocol.pieces, protocol.window);
  t.columns = {{"bits", 2}, {"perplexity", 3},  {"ln ratio", 4},
               {"KL", 4},   {"same top, %", 1}, {"paper score", 2, true}};
  for (size_t i = 0; i < policies.size(); ++i) {
    Cell paper;
    for (const auto& p : papers::kCsrScores)
      if (p.method == policies[i].name) paper.value = p.average;
    t.rows.push_back({policies[i].name,
                      policies[i].policy,
                      {{quality[i].ledger.effective_bits()},
                       quality[i].perplexity(),
                       quality[i].ln_ratio(),
                       quality[i].divergence(),
                       quality[i].same_top(),
                       paper}});
  }
  const auto at = [&](std::string_view name) {
    return static_cast<size_t>(std::ranges::find(policies, name, &NamedPolicy::name) -
                               policies.begin());
  };
  const auto kl = [&](size_t i) { return *quality[i].divergence().value; };
  const auto beside = [&](size_t ours, size_t other) {
    return fmt::format("KL {:.4f} at {:.2f} bits and {:.4f} at {:.2f}", kl(ours),
                       quality[ours].ledger.effective_bits(), kl(other),
                       quality[other].ledger.effective_bits());
  };
  const size_t four = at("csr, 4 bits"), two = at("csr, 2 bits"), one = at("csr, 1 bit");
  const size_t kivi4 = at("kivi, 4 bits"), kivi2 = at("kivi, 2 bits");
  const double ratio = std::exp(*quality[one].ln_ratio().value);
  t.claims = {
      policies[four].claim("csr at 4 bits is as good as KIVI", beside(four, kivi4),
                           kl(four) <= kl(kivi4)),
      policies[two].claim("csr and KIVI are alike at 2 bits", beside(two, kivi2),
                          kl(two) <= 1.25 * kl(kivi2)),
      policies[one].claim("1 bit loses 8% of the score (with a trained dictionary)",
                          fmt::format("perplexity {:.3f} of exact's", ratio), ratio <= 1.08)};
  bench.finish(t);
}

}  // namespace

void reproduce_csr(const ReproduceOptions& options) {
  const ReproduceBench bench(options);
  // A dictionary that does not go with the model is refused before anything is measured.
  const auto dim = static_cast<size_t>(options.model->config().head_dim);
  ledger_of(bench, at_bits(bench, dim, 256).back(), 1024);
  tick(bench, "coding errors", 0, 1);
  const ModelRows rows = collect(bench, bench.quick() ? 192 : 1536);
  bench.table("parts", [&] { parts_table(bench, rows, bench.quick() ? 64 : 256); });
  bench.table("size", [&] { size_table(bench, rows); });
  bench.table("memory", [&] { memory_table(bench, rows.dim); });
  bench.table("quality", [&] { quality_table(bench, rows.dim); });
}

}  // namespace pith
