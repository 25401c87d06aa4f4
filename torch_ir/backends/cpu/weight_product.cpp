// The product of a few rows with a stored matrix: each stored element is read once and widened to float32 in registers.

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX512F__)
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

// Formats: `read` returns LANES stored elements as PARTS vectors, less their zero point.

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
  static inline void read(const Stored* from, int zero, Floats* values) { values[0] = to_float(widened(from) - zero); }
};

struct Int4 {  // two in a byte, the first in the low half
  typedef uint8_t Stored;
  static constexpr int PARTS = 2;
  static inline void read(const Stored* from, int zero, Floats* values) {
    Words both = widened(from);
    values[0] = to_float((both & 15) - zero);
    values[1] = to_float((both >> 4) - zero);
  }
};

template <int VALUE>
using Constant = std::integral_constant<int, VALUE>;

struct Sizes {
  int64_t rows, count, width, group;  // of the input; rows, columns and columns with one scale of the matrix
};

// ROWS rows times AT_ONCE rows of the matrix. A row of x has its even elements first where PARTS is 2.
template <class Format, int ROWS, int AT_ONCE>
static inline void multiply(const float* x, const typename Format::Stored* matrix, const float* scales,
                            const int32_t* zeros, int offset, float* y, const Sizes& sizes) {
  constexpr int PARTS = Format::PARTS;
  const int64_t stored = sizes.width / PARTS, groups = sizes.width / sizes.group, step = sizes.group / PARTS;
  Floats total[ROWS][AT_ONCE] = {};
  for (int64_t g = 0; g < groups; g++) {
    Floats part[ROWS][AT_ONCE] = {};
    int zero[AT_ONCE];
    for (int b = 0; b < AT_ONCE; b++) zero[b] = offset + (zeros ? zeros[b * groups + g] : 0);
    for (int64_t k = g * step; k < (g + 1) * step; k += LANES)
      for (int b = 0; b < AT_ONCE; b++) {
        Floats values[PARTS];
        __builtin_prefetch(reinterpret_cast<const char*>(matrix + b * stored + k) + AHEAD);
        Format::read(matrix + b * stored + k, zero[b], values);
        for (int r = 0; r < ROWS; r++)
          for (int p = 0; p < PARTS; p++) part[r][b] += values[p] * load(x + r * sizes.width + p * stored + k);
      }
    for (int r = 0; r < ROWS; r++)
      for (int b = 0; b < AT_ONCE; b++) total[r][b] += scales ? part[r][b] * scales[b * groups + g] : part[r][b];
  }
  for (int r = 0; r < ROWS; r++)
    for (int b = 0; b < AT_ONCE; b++) {
      float sum = 0;
      for (int lane = 0; lane < LANES; lane++) sum += total[r][b][lane];
      y[r * sizes.count + b] = sum;
    }
}

template <class Format>
static void product(const float* x, const void* matrix, const float* scales, const int32_t* zeros, int offset, float* y,
                    const Sizes& sizes, int threads) {
  const int64_t groups = sizes.width / sizes.group, stored = sizes.width / Format::PARTS;
  const auto* first = static_cast<const typename Format::Stored*>(matrix);
  std::vector<float> apart;
  if (Format::PARTS == 2) {
    apart.resize(sizes.rows * sizes.width);
    for (int64_t row = 0; row < sizes.rows; row++)
      for (int64_t k = 0; k < stored; k++)
        for (int part = 0; part < 2; part++)
          apart[row * sizes.width + part * stored + k] = x[row * sizes.width + 2 * k + part];
    x = apart.data();
  }
  const auto part = [&](auto rows, auto at_once, int64_t row, int64_t n) {
    multiply<Format, rows(), at_once()>(x + row * sizes.width, first + n * stored,
                                        scales ? scales + n * groups : nullptr, zeros ? zeros + n * groups : nullptr,
                                        offset, y + row * sizes.count + n, sizes);
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

#define KERNEL(name, Format)                                                                                      \
  extern "C" void name(const float* x, const void* matrix, const float* scales, const int32_t* zeros, int offset, \
                       float* y, int64_t rows, int64_t count, int64_t width, int64_t group, int threads) {        \
    product<Format>(x, matrix, scales, zeros, offset, y, Sizes{rows, count, width, group}, threads);              \
  }

KERNEL(float32, Float32)
KERNEL(bfloat16, BFloat16)
KERNEL(int8, Int8)
KERNEL(uint8, Int4)
