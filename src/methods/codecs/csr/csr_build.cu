// Decode attention over CSR codes by building rows (csr_build.cuh): keys that were coded before
// RoPE, and all shapes that the tables of csr_decode.cu do not know. A block holds all atoms of its
// KV head in shared memory. Dense spans are read as everywhere.

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "methods/codecs/csr/csr_build.cuh"

namespace pith::cuda {
namespace {

constexpr int kMostWarps = 8;    // more would have too few registers
constexpr int kBuildSpans = 32;  // descriptors that are read together
// Blocks at hand: see BuildRun::span. Of packed ones two of each side are on their way, and a
// block's keys and two blocks' values are there as words.
constexpr int kKeySlots = 2, kValueSlots = 3, kPackedSlots = 2;

struct BuildParams : DecodeParams {
  CsrDictionaries csr;
  CsrLayout keys, values;
  int warp_bytes;  // of shared memory that a warp has to itself

  template <int D>
  __device__ int atom_bytes(bool of_keys) const {  // of a head's
    return (of_keys ? csr.keys : csr.values).count * 2 * D / csr.coding.chunks(of_keys);
  }
};

/// Shared memory: what each warp has (its ring, or its part of a merge; angles), queries, where
/// each head's tiles end, angles that all warps use, atoms.
template <int D, KeyTurn kTurn>
struct BuildSpace {
  static constexpr int kFixed =
      kQueries * D * 4 + (kTurn == KeyTurn::kInOrder ? 16 * D * 2 + 2 * Angles<D>::kBytes : 0);

  /// Of what a warp has as words.
  static __host__ __device__ int word_slots(bool packed) {
    return packed ? 1 + 2 : kKeySlots + kValueSlots;
  }
  static __host__ __device__ int ring_bytes(const CsrLayout& layout) {
    const int words = word_slots(layout.packed) * layout.pairs * 128;
    const int ring = words + (layout.packed ? 2 * kPackedSlots * layout.block_bytes() : 0);
    const int part = kPart<D> * 4;
    return ring > part ? ring : part;
  }
  static int warp_bytes(const CsrLayout& layout) {
    return ring_bytes(layout) + (kTurn == KeyTurn::kInOrder ? Angles<D>::kBytes : 0);
  }

  char* shared;
  int warps, warp_bytes_;
  CsrLayout layout;
  int key_bytes;

  __device__ char* ring() const { return shared + threadIdx.x / kWarp * warp_bytes_; }
  __device__ Angles<D> own_angles() const {
    return {reinterpret_cast<float*>(ring() + ring_bytes(layout))};
  }
  __device__ float* q() const { return reinterpret_cast<float*>(shared + warps * warp_bytes_); }
  /// From a tile's first 16 rows to its second, and from those to the warp's next tile.
  __device__ Angles<D> step(int i) const { return {q() + kQueries * D + i * D}; }
  __device__ __half* row_turns() const { return reinterpret_cast<__half*>(step(2).numbers); }
  __device__ char* key_atoms() const { return reinterpret_cast<char*>(q()) + kFixed; }
  __device__ char* value_atoms() const { return key_atoms() + key_bytes; }
};

/// A warp's share of the coded rows of one head.
template <int D, KeyTurn kTurn>
struct BuildRun {
  const BuildSpace<D, kTurn>& space;
  BuildSide keys, values;
  const CsrLayout &key_layout, &value_layout;
  const double* turns;
  const SoftCap& cap;
  BuildQueries<D> q;
  RowTurns<D> row_turns;
  const int* positions = nullptr;  // [32] of the tile's rows, if each has its own

  __device__ void start() {
    if constexpr (kTurn == KeyTurn::kInOrder) row_turns.load(space.row_turns());
  }
  __device__ bool packed() const { return space.layout.packed; }
  __device__ char* word_slot(int slot) const { return space.ring() + slot * keys.pairs * 128; }

  __device__ uint32_t* key_codes(int i) const {  // of the i-th tile
    return reinterpret_cast<uint32_t*>(word_slot(packed() ? 0 : i % kKeySlots));
  }
  __device__ uint32_t* value_codes(int i) const {
    return reinterpret_cast<uint32_t*>(
        word_slot(packed() ? 1 + i % 2 : kKeySlots + i % kValueSlots));
  }
  /// Where the i-th tile's keys or values arrive.
  __device__ char* arrivals(int i, bool of_keys) const {
    if (!packed()) return reinterpret_cast<char*>(of_keys ? key_codes(i) : value_codes(i));
    return word_slot(space.word_slots(true)) +
           (i % kPackedSlots * 2 + (of_keys ? 0 : 1)) * space.layout.block_bytes();
  }
  /// Packed pairs that have arrived become words.
  __device__ void open(int i) const {
    if (!packed()) return;
    const int lane = threadIdx.x % kWarp;
    read_words(key_codes(i), key_layout, arrivals(i, true), lane, kWarp);
    read_words(value_codes(i), value_layout, arrivals(i, false), lane, kWarp);
    __syncwarp();
  }
  __device__ void fetch(const DeviceSpan& span, int i, int tile) const {
    const int lane = threadIdx.x % kWarp, bytes = space.layout.block_bytes();
    const size_t from = static_cast<size_t>(tile) * bytes;
    char *k = arrivals(i, true), *v = arrivals(i, false);
    for (int at = lane * 16; at < bytes; at += kWarp * 16) {
      copy_async(k + at, static_cast<const char*>(span.keys) + from + at);
      copy_async(v + at, static_cast<const char*>(span.values) + from + at);
    }
  }

  /// Half m of a tile's keys, built, becomes scores.
  __device__ void score(float (&s)[2][4], BuildKeys<D>& rows, int m) {
    rows.put_in_order();
    if constexpr (kTurn == KeyTurn::kInOrder) rows.turn(row_turns);
    if constexpr (kTurn == KeyTurn::kEach) {
      rows.turn_each(turns, positions + 16 * m + threadIdx.x % kWarp / 4);
    }
    float half[4];
    rows.multiply(half, q);
    if constexpr (kTurn == KeyTurn::kInOrder) q.turn_back(space.step(m).numbers);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (m == 0) s[0][j] = half[j];
      if (m == 1) s[1][j] = half[j];
    }
  }
  static __device__ void weigh(Running<D>& to, BuildValues<D>& rows, const uint32_t (&p)[2][2],
                               int m) {
    rows.put_in_order(threadIdx.x % 4 % BuildValues<D>::kQuarters);
    const uint32_t half[2] = {m == 0 ? p[0][0] : p[1][0], m == 0 ? p[0][1] : p[1][1]};
    rows.accumulate(to, half);
  }

  // Halves go through one body each: less to fetch, and to compile.
  __device__ void scores(float (&s)[2][4], const uint32_t* key_codes) {
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
      BuildKeys<D> rows;
      rows.build(keys, key_codes, m);
      score(s, rows, m);
    }
  }
  __device__ void accumulate(Running<D>& to, const uint32_t* value_codes,
                             const uint32_t (&p)[2][2]) const {
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
      BuildValues<D> rows;
      rows.build(values, value_codes, m);
      weigh(to, rows, p, m);
    }
  }
  /// Both, a tile's keys and the values of the tile before: what waits for shared memory and what
  /// does not go side by side.
  __device__ void scores_and_accumulate(float (&s)[2][4], const uint32_t* key_codes, Running<D>& to,
                                        const uint32_t* value_codes, const uint32_t (&p)[2][2]) {
    if (keys.chunks != 1 || keys.pairs % 4 != 0 || values.chunks != 2) {
      accumulate(to, value_codes, p);
      scores(s, key_codes);
      return;
    }
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
      BuildKeys<D> k;
      BuildValues<D> v;
      k.clear();
      v.clear();
#pragma unroll 1
      for (int j = 0; j < keys.pairs; j += 4) {
        k.add_four(keys, key_codes, m, j);
        v.add_one(values, value_codes, m, j / 2);
        v.add_one(values, value_codes, m, j / 2 + 1);
      }
      weigh(to, v, p, m);
      score(s, k, m);
    }
  }

  /// Of acc[t][2 u + j].
  static __device__ int channel_of(int t, int u) {
    const int r = threadIdx.x % kWarp / 4;
    return D / 2 * (r / 4) + 16 * (t / 2) + 4 * (r % 4) + 2 * (t % 2) + u;
  }

  /// Tiles first, first + warps, ... below `end`. Values follow a tile behind their keys.
  __device__ void span(Running<D>& to, const DeviceSpan& span, int first, int end) {
    fetch(span, 0, first);
    commit_copies();
    q.load(space.q());
    if constexpr (kTurn == KeyTurn::kInOrder) {
      const Angles<D> angles = space.own_angles();
      angles.fill(turns, span.position + int64_t{32} * first, threadIdx.x % kWarp, kWarp);
      __syncwarp();
      q.turn_back(angles.numbers);
    }
    uint32_t p[2][2];
    int i = 0;
    for (int t = first; t < end; t += space.warps, ++i) {
      __syncwarp();  // every lane is done with the slots that are filled next
      if (t + space.warps < end) fetch(span, i + 1, t + space.warps);
      commit_copies();
      wait_for_copies<1>();
      __syncwarp();
      open(i);
      positions = static_cast<const int*>(span.key_side) + kBlockRows * t;
      float s[2][4];
      if (i > 0) {
        scores_and_accumulate(s, key_codes(i), to, value_codes(i - 1), p);
      } else {
        scores(s, key_codes(i));
      }
      cap.apply(s);
      if (span.log_weights || span.log_weight != 0 || (t + 1) * BlockTiles::kRows > span.rows) {
        mask_and_weight(s, span, t * BlockTiles::kRows);
      }
      to.template weigh<__half>(p, s);
    }
    accumulate(to, value_codes(i - 1), p);
    wait_for_copies<0>();
    __syncwarp();
  }
};

/// A head's atoms, on their way to shared memory.
template <int D, KeyTurn kTurn>
__device__ inline void ask_for_atoms(const BuildSpace<D, kTurn>& space, const BuildParams& p,
                                     int kv_head) {
  const auto copy = [&](char* to, const CsrAtoms& atoms, int bytes) {
    const auto* from = static_cast<const char*>(atoms.rows) +
                       (atoms.common ? 0 : static_cast<size_t>(kv_head) * bytes);
    for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) copy_async(to + i, from + i);
  };
  copy(space.key_atoms(), p.csr.keys, space.key_bytes);
  copy(space.value_atoms(), p.csr.values, p.template atom_bytes<D>(false));
  commit_copies();
}

/// Angles that do not depend on the rows.
template <int D>
__device__ inline void fill_angles(const BuildSpace<D, KeyTurn::kInOrder>& space,
                                   const double* turns) {
  space.step(0).fill(turns, 16, threadIdx.x, blockDim.x);
  space.step(1).fill(turns, 32 * space.warps - 16, threadIdx.x, blockDim.x);
  for (int i = threadIdx.x; i < 16 * D / 2; i += blockDim.x) {
    const int row = i / (D / 2), pair = i % (D / 2);
    const float2 angle = turn_at(turns[pair], row);
    space.row_turns()[row * D + pair] = __float2half_rn(angle.x);
    space.row_turns()[row * D + D / 2 + pair] = __float2half_rn(angle.y);
  }
}

template <class T, int D, KeyTurn kTurn>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    build_kernel(const __grid_constant__ BuildParams p) {
  auto* shared = launched_shared<char>();
  const BuildSpace<D, kTurn> space{shared, static_cast<int>(blockDim.x) / kWarp, p.warp_bytes,
                                   p.keys, p.template atom_bytes<D>(true)};
  let_successor_start();
  if constexpr (kTurn == KeyTurn::kInOrder) fill_angles(space, p.csr.coding.turns);
  Predecessor ahead;
  char* walk_space = space.value_atoms() + p.template atom_bytes<D>(false);
  int held = -1;  // the KV head whose atoms are here
  for_own_heads<D, BlockTiles, kBuildSpans>(
      p, walk_space, ahead, [&](const HeadShare& share, const Cut& cut) {
        const int kv_head = p.kv_head_of(share.head);
        if (kv_head != held) ask_for_atoms(space, p, kv_head);
        held = kv_head;
        ahead.wait();  // atoms are on their way
        load_queries<T, D>(space.q(), p, share);
        wait_for_copies<0>();
        __syncthreads();
        Running<D> run;
        BuildRun<D, kTurn> rows{space,
                                {space.key_atoms(), p.keys.pairs, p.csr.coding.key_chunks},
                                {space.value_atoms(), p.values.pairs, p.csr.coding.value_chunks},
                                p.keys,
                                p.values,
                                p.csr.coding.turns,
                                p.cap};
        rows.start();
        CodedWalk walk{share.spans, p.span_count, share.begin, share.end};
        bool any = false;
        while (walk.next<BlockTiles>()) {
          const DeviceSpan span = walk.span;
          rows.span(run, span, walk.tiles.x, walk.tiles.y);
          any = true;
        }
        if (any && walk.dense) {
          to_dense_order<BuildRun<D, kTurn>>(run, reinterpret_cast<float*>(space.ring()));
        }
        if (walk.dense) {
          run_dense_ends<T, BlockTiles, D>(
              run, DenseWalk<BlockTiles>{share.spans, p.span_count, share.begin, share.end},
              space.q(), p.cap);
        }
        end_head(p, cut, run, {share.head, shared, static_cast<size_t>(p.warp_bytes), space.warps},
                 [&](int t, int u) {
                   return walk.dense ? channel_of(t, u) : BuildRun<D, kTurn>::channel_of(t, u);
                 });
      });
}

/// How a block's shared memory is used.
struct BuildShape {
  int warps = 0;  ///< as many as have room
  size_t warp_bytes = 0, bytes = 0;
};
template <int D, KeyTurn kTurn>
BuildShape build_shape(const CsrDictionaries& csr, int lists) {
  using Space = BuildSpace<D, kTurn>;
  BuildShape shape;
  shape.warp_bytes = static_cast<size_t>(Space::warp_bytes(csr.coding.layout(true)));
  const size_t fixed = Space::kFixed + csr.keys.bytes(D / csr.coding.key_chunks) +
                       csr.values.bytes(D / csr.coding.value_chunks) +
                       walk_bytes<kBuildSpans>(lists);
  const size_t most = device_info().shared_per_block;
  const size_t room = fixed < most ? (most - fixed) / shape.warp_bytes : 0;
  // The merge of all blocks' parts goes where the warps' own memory is.
  const size_t merge = sizeof(float) * kQueries * device_info().multiprocessors;
  if (room < 2 || room * shape.warp_bytes < merge) refuse_csr_atoms(csr, most);
  shape.warps = std::min(kMostWarps, static_cast<int>(room));
  shape.bytes = fixed + shape.warps * shape.warp_bytes;
  return shape;
}

template <class T, int D, KeyTurn kTurn>
void launch_build(const CsrDictionaries& csr, const DecodeCall& call, const DecodeScratch& scratch,
                  cudaStream_t stream) {
  BuildParams p{};
  static_cast<DecodeParams&>(p) = make_params(call, scratch);
  p.csr = csr;
  p.keys = csr.coding.layout(true);
  p.values = csr.coding.layout(false);
  const BuildShape shape = build_shape<D, kTurn>(csr, p.heads);
  p.warp_bytes = static_cast<int>(shape.warp_bytes);
  launch_call(build_kernel<T, D, kTurn>,
              {{}, static_cast<unsigned>(shape.warps * kWarp), shape.bytes}, p, call, stream,
              "CSR attention");
}

/// f.operator()<turn>() with the turn of a coding's keys.
template <class F>
auto for_turn(const CsrCoding& coding, const F& f) {
  if (!coding.turns) return f.template operator()<KeyTurn::kNone>();
  return coding.positions ? f.template operator()<KeyTurn::kEach>()
                          : f.template operator()<KeyTurn::kInOrder>();
}

}  // namespace

void check_csr_room(const CsrDictionaries& csr, int head_dim) {
  constexpr int kLists = 256;  // of KV heads and query groups
  for_turn(csr.coding, [&]<KeyTurn kTurn>() {
    return head_dim == 64 ? build_shape<64, kTurn>(csr, kLists)
                          : build_shape<128, kTurn>(csr, kLists);
  });
}

void decode_csr_by_rows(const CsrDictionaries& csr, const DecodeCall& call,
                        const DecodeScratch& scratch, cudaStream_t stream) {
  with_rows_of(call.dtype, call.shape.head_dim, [&]<class T, int D>() {
    for_turn(csr.coding,
             [&]<KeyTurn kTurn>() { launch_build<T, D, kTurn>(csr, call, scratch, stream); });
  });
}

}  // namespace pith::cuda
