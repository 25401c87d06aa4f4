// The product of a few rows with a stored matrix: each stored element is read once and widened to float32 in registers.

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int BLOCK = 8;       // rows of the matrix at a time, whose sums do not wait for each other
constexpr int AHEAD = 1 << 14; // bytes between what is read and what is fetched
constexpr int ROWS_AT_ONCE = 4, BLOCK_OF_ROWS = 2;  // sums of several rows must fit into registers, too

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Words __attribute__((vector_size(4 * LANES)));

static inline Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}

// An initialiser, because GCC 12 converts narrow vectors one element at a time.
template <class Narrow>
static inline Words widened(const Narrow* n) {
#if defined(__AVX512F__)
  return (Words){n[0], n[1], n[2],  n[3],  n[4],  n[5],  n[6],  n[7],
                 n[8], n[9], n[10], n[11], n[12], n[13], n[14], n[15]};
#elif defined(__AVX2__)
  return (Words){n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]};
#else
  return (Words){n[0], n[1], n[2], n[3]};
#endif
}

static inline Floats to_float(Words values) { return __builtin_convertvector(values, Floats); }

// Formats: `read` returns LANES stored elements as PARTS vectors, less the number that was added to them.

struct Float32 {
  typedef float Stored;
  static constexpr int PARTS = 1;
  static inline void read(const Stored* from, int, Floats* values) { values[0] = load(from); }
};

struct BFloat16 {
  typedef uint16_t Stored;
  static constexpr int PARTS = 1;
  static inline void read(const Stored* from, int, Floats* values) { values[0] = (Floats)(widened(from) << 16); }
};

struct Int8 {
  typedef int8_t Stored;
  static constexpr int PARTS = 1;
  static inline void read(const Stored* from, int added, Floats* values) {
    values[0] = to_float(widened(from) - added);
  }
};

struct Int4 {  // two in a byte, the first in the low half
  typedef uint8_t Stored;
  static constexpr int PARTS = 2;
  static inline void read(const Stored* from, int added, Floats* values) {
    Words both = widened(from);
    values[0] = to_float((both & 15) - added);
    values[1] = to_float((both >> 4) - added);
  }
};

#if defined(__AVX512F__)
struct Int4Words {  // the same, eight in a word, each looked up in a register that holds the 16 values
  typedef uint32_t Stored;
  static constexpr int PARTS = 8;
  static inline void read(const Stored* from, int added, Floats* values) {
    Words eight;
    std::memcpy(&eight, from, sizeof(eight));
    const Words all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Floats table = to_float(all - added);
    for (int part = 0; part < PARTS; part++)  // the lookup ignores all but the low four bits
      values[part] = (Floats)_mm512_permutexvar_ps((__m512i)(eight >> (4 * part)), (__m512)table);
  }
};
#endif

template <int VALUE>
using Constant = std::integral_constant<int, VALUE>;

struct Sizes {
  int64_t rows, count, width, group;  // of the input; rows, columns and columns with one scale of the matrix
};

// The numbers of `shared` groups, each for its part of the lanes.
static inline Floats spread(const float* from, int shared) {
  if (shared == 1) return Floats{} + from[0];
#if defined(__AVX512F__)
  const Words lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const __m512 some = _mm512_maskz_loadu_ps((1 << shared) - 1, from);
  return (Floats)_mm512_permutexvar_ps((__m512i)(lanes * shared >> 4), some);
#else
  __builtin_unreachable();
#endif
}

// ROWS rows times AT_ONCE rows of the matrix. x has its elements in the order in which `read` returns them.
template <class Format, int ROWS, int AT_ONCE>
static inline void multiply(const float* x, const typename Format::Stored* matrix, const float* scales,
                            const float* zeros, int added, float* y, const Sizes& sizes) {
  constexpr int PARTS = Format::PARTS, WIDTH = LANES * PARTS;
  const int64_t stored = sizes.width / PARTS, groups = sizes.width / sizes.group;
  const int shared = sizes.group < WIDTH ? WIDTH / sizes.group : 1;
  const int64_t step = shared * sizes.group / PARTS;
  Floats total[ROWS][AT_ONCE] = {};
  for (int64_t start = 0, g = 0; start < stored; start += step, g += shared) {
    Floats part[ROWS][AT_ONCE] = {};
    Floats zero[AT_ONCE];
    if (zeros)
      for (int b = 0; b < AT_ONCE; b++) zero[b] = spread(zeros + b * groups + g, shared);
    for (int64_t k = start; k < start + step; k += LANES)
#pragma GCC unroll 8
      for (int b = 0; b < AT_ONCE; b++) {
        Floats values[PARTS];
        __builtin_prefetch(reinterpret_cast<const char*>(matrix + b * stored + k) + AHEAD);
        Format::read(matrix + b * stored + k, added, values);
        if (zeros)
          for (int p = 0; p < PARTS; p++) values[p] -= zero[b];
        for (int r = 0; r < ROWS; r++)
          for (int p = 0; p < PARTS; p++) part[r][b] += values[p] * load(x + r * sizes.width + PARTS * k + p * LANES);
      }
    for (int b = 0; b < AT_ONCE; b++) {
      if (!scales) {
        for (int r = 0; r < ROWS; r++) total[r][b] += part[r][b];
      } else {
        const Floats scale = spread(scales + b * groups + g, shared);
        for (int r = 0; r < ROWS; r++) total[r][b] += part[r][b] * scale;
      }
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int b = 0; b < AT_ONCE; b++) {
      float sum = 0;
      for (int lane = 0; lane < LANES; lane++) sum += total[r][b][lane];
      y[r * sizes.count + b] = sum;
    }
}

template <class Format>
static void product(const float* x, const void* matrix, const float* scales, const float* zeros, int added, float* y,
                    const Sizes& sizes, int threads) {
  constexpr int PARTS = Format::PARTS;
  const int64_t groups = sizes.width / sizes.group, stored = sizes.width / PARTS;
  const auto* first = static_cast<const typename Format::Stored*>(matrix);
  std::vector<float> apart;
  if (PARTS > 1) {
    apart.resize(sizes.rows * sizes.width);
    for (int64_t start = 0; start < sizes.rows * sizes.width; start += LANES * PARTS)
      for (int part = 0; part < PARTS; part++)
        for (int lane = 0; lane < LANES; lane++) apart[start + part * LANES + lane] = x[start + lane * PARTS + part];
    x = apart.data();
  }
  const auto part = [&](auto rows, auto at_once, int64_t row, int64_t n) {
    multiply<Format, rows(), at_once()>(x + row * sizes.width, first + n * stored,
                                        scales ? scales + n * groups : nullptr, zeros ? zeros + n * groups : nullptr,
                                        added, y + row * sizes.count + n, sizes);
  };
#pragma omp parallel for num_threads(threads)
  for (int64_t start = 0; start < sizes.count; start += BLOCK) {
    const bool is_whole = start + BLOCK <= sizes.count;
    int64_t row = 0;
    for (; is_whole && row + ROWS_AT_ONCE <= sizes.rows; row += ROWS_AT_ONCE)
      for (int64_t n = start; n < start + BLOCK; n += BLOCK_OF_ROWS)
        part(Constant<ROWS_AT_ONCE>{}, Constant<BLOCK_OF_ROWS>{}, row, n);
    for (; row < sizes.rows; row++)
      if (is_whole)
        part(Constant<1>{}, Constant<BLOCK>{}, row, start);
      else
        for (int64_t n = start; n < sizes.count; n++) part(Constant<1>{}, Constant<1>{}, row, n);
  }
}

static void int4_product(const float* x, const void* matrix, const float* scales, const float* zeros, int added,
                         float* y, const Sizes& sizes, int threads) {
#if defined(__AVX512F__)
  constexpr int WIDTH = LANES * Int4Words::PARTS;
  if (sizes.width % WIDTH == 0 && (sizes.group % WIDTH == 0 || WIDTH % sizes.group == 0))
    return product<Int4Words>(x, matrix, scales, zeros, added, y, sizes, threads);
#endif
  product<Int4>(x, matrix, scales, zeros, added, y, sizes, threads);
}

#define KERNEL(name, multiplied)                                                                               \
  extern "C" void name(const float* x, const void* matrix, const float* scales, const float* zeros, int added, \
                       float* y, int64_t rows, int64_t count, int64_t width, int64_t group, int threads) {     \
    multiplied(x, matrix, scales, zeros, added, y, Sizes{rows, count, width, group}, threads);                 \
  }

KERNEL(float32, product<Float32>)
KERNEL(bfloat16, product<BFloat16>)
KERNEL(int8, product<Int8>)
KERNEL(uint8, int4_product)
