// y = x W^T on the CPU. Few tokens: Kernels::matvec, or multiply_blocks, over tiles of rows of W,
// which read W once.
// Many: oneDNN over tiles of tokens x outputs, each tile a single-threaded call inside a task of
// our own pool. oneDNN's OpenMP team would compete with the pool, and its partition (so the last
// bits of the result) would depend on the number of threads.

#include "kernels/matmul.h"

#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/block_products.h"
#include "pith/error.h"

namespace pith {
namespace {

// Up to here reading W costs more than the arithmetic.
constexpr size_t kFewTokens = 8;
// A matvec task reads about this much of W: long runs for the prefetchers, short enough to share.
constexpr size_t kMatvecBytes = size_t{256} << 10;
constexpr size_t kMatvecBlockBytes = size_t{64} << 10;  // as many weights
constexpr size_t kMatvecRows = 16;  // a multiple of every kernel's block of rows
// A oneDNN call makes up to kTileTokens x kTileOutputs results: 256 KiB, which stay in L2 on their
// way to y. oneDNN's AMX kernels want a dense result, hence the detour.
constexpr size_t kTileTokens = 512;
constexpr size_t kTileOutputs = 128;
// Primitives are small, but prompts of every length would collect them without end.
constexpr size_t kMaxPrimitives = 256;

using Memory = dnnl::memory;

/// Whether a program may write code into its memory and run it, as oneDNN does. systemd's
/// MemoryDenyWriteExecute and hardened kernels forbid it.
bool may_generate_code() {
  static const bool kMay = [] {
    constexpr size_t kPage = 4096;
    void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return true;  // short of memory: what comes next says so
    const bool may = mprotect(page, kPage, PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
    munmap(page, kPage);
    return may;
  }();
  return kMay;
}

/// oneDNN crashes where it gets no memory for the code that it writes, so it is asked for before: a
/// primitive takes up to some MiB. Throws kOutOfMemory.
void check_room_for_code() {
  constexpr size_t kRoom = size_t{16} << 20;
  void* room = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED)
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("the machine has no {} MiB left for a product's code; free some, or "
                            "raise the limit of the process",
                            kRoom >> 20));
  munmap(room, kRoom);
}

/// Makes OpenMP regions of this thread run on this thread alone.
class OneOmpThread {
 public:
  OneOmpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOmpThread() { omp_set_num_threads(before_); }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int before_;
};

/// Holds this thread's signals back. oneDNN's generated kernels run on a stack that they make on
/// the heap (2.6: 16.6 KB, mov rsp), too small for the frame of a signal: its handler would write
/// over what lies before it.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

/// Shape of one oneDNN call.
struct TileShape {
  size_t tokens = 0, outputs = 0, in = 0;
  bool bf16 = false;
  auto operator<=>(const TileShape&) const = default;
};

struct Primitive {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul op;
};

/// A tile of one product.
struct Tile {
  size_t product = 0;
  size_t first_token = 0, first_output = 0;
  TileShape shape;
  const Primitive* primitive = nullptr;
};

struct Worker {
  Array<float> row;             // [in]
  Array<float> result;          // [tokens, outputs] of a tile
  Array<float> weights;         // [outputs, in] of a tile, widened or decoded
  Array<std::byte> scratchpad;  // oneDNN's
};

template <class T>
void grow(Array<T>& a, size_t n) {
  if (a.size() >= n) return;
  a.reserve(n);
  a.resize(n);
}

}  // namespace

/// How a run is carried out.
struct Matmul::Way {
  bool few = false;      // rows share each row of weights as it is read
  bool bf16 = false;     // else by bf16 hardware
  bool rounded = false;  // inputs as 8 or 16 bits in blocks
};

struct Matmul::State {
  State(const Context& c, MatmulPrecision p)
      : context(c),
        blocks(block_kernels(c.kernels)),
        precision(p),
        engine(dnnl::engine::kind::cpu, 0),
        x(c.memory, MemoryKind::kScratch),
        x_bf16(c.memory, MemoryKind::kScratch),
        x_rounded(c.memory, MemoryKind::kScratch) {
    has_bf16 = generates && std::string_view(c.kernels.isa).starts_with("avx512") &&
               dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_bf16;
    for (int w = 0; w < c.pool.size(); ++w) {
      workers.push_back({.row = {c.memory, MemoryKind::kScratch},
                         .result = {c.memory, MemoryKind::kScratch},
                         .weights = {c.memory, MemoryKind::kScratch},
                         .scratchpad = {c.memory, MemoryKind::kScratch}});
      streams.emplace_back(engine);
    }
  }

  void make_room(size_t tokens, size_t in, const Way& way);
  void make_rows(size_t tokens, size_t in, RowSource source, const Way& way);
  const void* weights_of(const Tile& tile, const WeightMatrix& w, Worker& mine) const;
  void run_few(size_t tokens, size_t in, std::span<const Product> products);
  void multiply_few(const Tile& tile, const Product& product, size_t first, size_t count);
  void list_many(size_t tokens, size_t in, std::span<const Product> products, bool bf16);
  void run_many(std::span<const Product> products);
  const Primitive& primitive(const TileShape& shape);
  void run_tile(const Tile& tile, const Product& product, int worker);

  Context context;
  const BlockKernels& blocks;
  MatmulPrecision precision;
  const bool generates = may_generate_code();
  bool has_bf16 = false;
  dnnl::engine engine;
  std::vector<dnnl::stream> streams;  // [threads]
  std::vector<Worker> workers;        // [threads]
  Array<float> x;                     // [T, in]
  Array<uint16_t> x_bf16;             // [T, in]
  Array<std::byte> x_rounded;         // [T, rounded_bytes(in)]
  std::map<TileShape, Primitive> primitives;
  std::vector<Tile> tiles;
};

void Matmul::State::make_room(size_t tokens, size_t in, const Way& way) {
  if (way.rounded) grow(x_rounded, tokens * rounded_bytes(in, precision == MatmulPrecision::kF32));
  if (way.bf16) {
    grow(x_bf16, tokens * in);
    for (Worker& w : workers) grow(w.row, in);
  } else {
    grow(x, tokens * in);
  }
}

void Matmul::State::make_rows(size_t tokens, size_t in, RowSource source, const Way& way) {
  const bool wide = precision == MatmulPrecision::kF32, bf16 = way.bf16, rounded = way.rounded;
  const size_t bytes = rounded_bytes(in, wide);
  make_room(tokens, in, way);
  context.pool.parallel_for(tokens, [&](size_t t, int worker) {
    float* row = bf16 ? workers[static_cast<size_t>(worker)].row.data() : x.data() + t * in;
    source(row, t);
    if (bf16) context.kernels.from_f32(x_bf16.data() + t * in, row, DType::kBF16, in);
    if (rounded) blocks.round_inputs(x_rounded.data() + t * bytes, row, in, wide);
  });
}

void Matmul::State::run_few(size_t tokens, size_t in, std::span<const Product> products) {
  tiles.clear();
  for (size_t p = 0; p < products.size(); ++p) {
    const WeightMatrix& w = *products[p].w;
    const size_t bytes = dense_type(w.type) ? kMatvecBytes : kMatvecBlockBytes;
    const size_t wanted = bytes / row_bytes(w.type, in);
    const size_t rows = std::max(kMatvecRows, wanted / kMatvecRows * kMatvecRows);
    for (size_t first = 0; first < w.out; first += rows) {
      tiles.push_back({.product = p,
                       .first_output = first,
                       .shape = {tokens, std::min(rows, w.out - first), in, false}});
    }
  }
  // A tile of W stays in L2 while one group of rows after another passes by.
  context.pool.parallel_for(tiles.size(), [&](size_t i, int) {
    for (size_t t = 0; t < tokens; t += kFewTokens)
      multiply_few(tiles[i], products[tiles[i].product], t, std::min(kFewTokens, tokens - t));
  });
}

/// A tile of W times rows [first, first + count) of the input. Both kernels give a row the same
/// bits whatever rows are beside it.
void Matmul::State::multiply_few(const Tile& tile, const Product& p, size_t first, size_t count) {
  const size_t in = tile.shape.in, end = tile.first_output + tile.shape.outputs;
  float* y = p.y + first * p.w->out;
  if (const auto dense = dense_type(p.w->type)) {
    context.kernels.matvec(y, p.w->out, x.data() + first * in, count, p.w->data, *dense, in,
                           tile.first_output, end);
    return;
  }
  const bool wide = precision == MatmulPrecision::kF32;
  const BlockProduct product{.out = y,
                             .ld = p.w->out,
                             .x = x_rounded.data() + first * rounded_bytes(in, wide),
                             .wide = wide,
                             .tokens = count,
                             .w = p.w->row(0),
                             .type = p.w->type,
                             .rows = p.w->out,
                             .in = in};
  blocks.multiply(product, tile.first_output, end);
}

const Primitive& Matmul::State::primitive(const TileShape& shape) {
  const auto found = primitives.find(shape);
  if (found != primitives.end()) return found->second;
  check_room_for_code();
  const auto m = static_cast<Memory::dim>(shape.tokens);
  const auto n = static_cast<Memory::dim>(shape.outputs);
  const auto k = static_cast<Memory::dim>(shape.in);
  const auto type = shape.bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
  const Memory::desc from({m, k}, type, Memory::dims{k, 1});
  const Memory::desc by({k, n}, type, Memory::dims{1, k});
  const Memory::desc to({m, n}, Memory::data_type::f32, Memory::dims{n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const OneOmpThread one;  // the partition is chosen here, for this many threads
#if DNNL_VERSION_MAJOR < 3
  const dnnl::matmul::primitive_desc chosen({from, by, to}, attributes, engine);
#else
  const dnnl::matmul::primitive_desc chosen(engine, from, by, to, attributes);
#endif
  return primitives.emplace(shape, Primitive{chosen, dnnl::matmul(chosen)}).first->second;
}

/// The tile's rows of W in the type that is multiplied: where they lie, or widened or decoded.
const void* Matmul::State::weights_of(const Tile& tile, const WeightMatrix& w, Worker& mine) const {
  const auto [tokens, outputs, in, bf16] = tile.shape;
  const std::byte* rows = w.row(tile.first_output);
  if (w.type == (bf16 ? WeightType::kBF16 : WeightType::kF32)) return rows;
  float* out = mine.weights.data();
  if (const auto dense = dense_type(w.type)) {
    context.kernels.to_f32(out, rows, *dense, outputs * in);
  } else if (!bf16) {
    blocks.decode(out, rows, w.type, outputs * in);
  } else {
    auto* narrow = reinterpret_cast<uint16_t*>(out);
    for (size_t o = 0; o < outputs; ++o) {
      blocks.decode(mine.row.data(), w.row(tile.first_output + o), w.type, in);
      context.kernels.from_f32(narrow + o * in, mine.row.data(), DType::kBF16, in);
    }
  }
  return out;
}

void Matmul::State::run_tile(const Tile& tile, const Product& product, int worker) {
  Worker& mine = workers[static_cast<size_t>(worker)];
  const auto [tokens, outputs, in, bf16] = tile.shape;
  const WeightMatrix& w = *product.w;
  const void* operand = weights_of(tile, w, mine);
  const size_t offset = tile.first_token * in;
  void* input = bf16 ? static_cast<void*>(x_bf16.data() + offset) : x.data() + offset;
  float* y = product.y + tile.first_token * w.out + tile.first_output;
  const bool direct = outputs == w.out;
  float* result = direct ? y : mine.result.data();

  const OneOmpThread one;
  const NoSignals quiet;
  const dnnl::matmul::primitive_desc& desc = tile.primitive->desc;
  tile.primitive->op.execute(
      streams[static_cast<size_t>(worker)],
      {{DNNL_ARG_SRC, Memory(desc.src_desc(), engine, input)},
       {DNNL_ARG_WEIGHTS, Memory(desc.weights_desc(), engine, const_cast<void*>(operand))},
       {DNNL_ARG_DST, Memory(desc.dst_desc(), engine, result)},
       {DNNL_ARG_SCRATCHPAD, Memory(desc.scratchpad_desc(), engine, mine.scratchpad.data())}});
  if (direct) return;
  for (size_t t = 0; t < tokens; ++t) {
    std::memcpy(y + t * w.out, result + t * outputs, outputs * sizeof(float));
  }
}

void Matmul::State::list_many(size_t tokens, size_t in, std::span<const Product> products,
                              bool bf16) {
  if (primitives.size() > kMaxPrimitives) primitives.clear();
  tiles.clear();
  size_t results = 0, widened = 0, scratchpad = 0;
  for (size_t p = 0; p < products.size(); ++p) {
    const size_t out = products[p].w->out;
    for (size_t o = 0; o < out; o += kTileOutputs) {
      for (size_t t = 0; t < tokens; t += kTileTokens) {
        const TileShape shape{std::min(kTileTokens, tokens - t), std::min(kTileOutputs, out - o),
                              in, bf16};
        const Primitive& primitive = this->primitive(shape);
        tiles.push_back({p, t, o, shape, &primitive});
        if (shape.outputs != out) results = std::max(results, shape.tokens * shape.outputs);
        if (products[p].w->type != (bf16 ? WeightType::kBF16 : WeightType::kF32)) {
          widened = std::max(widened, shape.outputs * in / (bf16 ? 2 : 1) + 1);
        }
        scratchpad = std::max(scratchpad, primitive.desc.scratchpad_desc().get_size());
      }
    }
  }
  for (Worker& w : workers) {
    grow(w.result, results);
    grow(w.weights, widened);
    grow(w.scratchpad, scratchpad);
  }
}

void Matmul::State::run_many(std::span<const Product> products) {
  context.pool.parallel_for(tiles.size(), [&](size_t i, int worker) {
    run_tile(tiles[i], products[tiles[i].product], worker);
  });
}

namespace {

template <class F>
void named_errors(size_t tokens, size_t in, const F& f) {
  try {
    f();
  } catch (const dnnl::error& e) {
    // Refused pages for code are a "runtime error" of its own.
    const bool memory = e.status == dnnl_out_of_memory || e.status == dnnl_runtime_error;
    throw Error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
                fmt::format("oneDNN: {} ({} tokens, {} inputs){}", e.message, tokens, in,
                            memory ? "; the machine gave it no memory" : ""));
  }
}

}  // namespace

Matmul::Matmul(const Context& context, MatmulPrecision precision)
    : state_(std::make_unique<State>(context, precision)) {}
Matmul::~Matmul() = default;

bool Matmul::bf16_hardware() const { return state_->has_bf16; }

void Matmul::run(size_t tokens, size_t in, RowSource row, std::span<const Product> products,
                 RowsOf rows) {
  if (tokens == 0) return;
  for (const Product& p : products) {
    if (p.w->in == in) continue;
    throw Error(ErrorCode::kInternal,
                fmt::format("a product of [{}, {}] with inputs of {}", p.w->out, p.w->in, in));
  }
  const Way way = this->way(tokens, products, rows);
  state_->make_rows(tokens, in, row, way);
  if (way.few) return state_->run_few(tokens, in, products);
  named_errors(tokens, in, [&] {
    state_->list_many(tokens, in, products, way.bf16);
    state_->run_many(products);
  });
}

void Matmul::prepare(size_t tokens, size_t in, std::span<const Product> products, RowsOf rows) {
  const Way way = this->way(tokens, products, rows);
  state_->make_room(tokens, in, way);
  if (!way.few)
    named_errors(tokens, in, [&] { state_->list_many(tokens, in, products, way.bf16); });
}

Matmul::Way Matmul::way(size_t tokens, std::span<const Product> products, RowsOf rows) const {
  Way way;
  way.few = rows == RowsOf::kMany || tokens <= kFewTokens || !state_->generates;
  way.bf16 = !way.few && state_->has_bf16 && state_->precision == MatmulPrecision::kFast &&
             std::all_of(products.begin(), products.end(), [](const Product& p) {
               return p.w->type == WeightType::kBF16 || !dense_type(p.w->type);
             });
  way.rounded = way.few && std::any_of(products.begin(), products.end(),
                                       [](const Product& p) { return !dense_type(p.w->type); });
  return way;
}

void matmul(const Context& context, float* y, const float* x, const WeightMatrix& w, size_t tokens,
            MatmulPrecision precision) {
  auto row = [&](float* out, size_t t) { std::memcpy(out, x + t * w.in, w.in * sizeof(float)); };
  const Product product{y, &w};
  Matmul(context, precision).run(tokens, w.in, row, {&product, 1});
}

}  // namespace pith
