// Numbers of the types that libraries compute with, in memory.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

enum Type { F32 = 0, F16 = 2, BF16 = 14 };  // of cudaDataType

static float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static float keep_bits(float x, int dropped) {  // round the mantissa, ties to even
  uint32_t bits = to_bits(x);
  if (!std::isfinite(x)) return x;
  bits += (1u << (dropped - 1)) - 1 + (bits >> dropped & 1);
  return from_bits(bits >> dropped << dropped);
}
static size_t width(int type) { return type == F32 ? 4 : 2; }
static float load(const void *p, size_t i, int type) {
  if (type == F32) return static_cast<const float *>(p)[i];
  uint16_t bits = static_cast<const uint16_t *>(p)[i];
  if (type == BF16) return from_bits(uint32_t(bits) << 16);
  _Float16 half;
  memcpy(&half, &bits, 2);
  return half;
}
static void store(void *p, size_t i, int type, float x) {
  if (type == F32) {
    static_cast<float *>(p)[i] = x;
    return;
  }
  uint16_t bits = to_bits(keep_bits(x, 16)) >> 16;
  if (type == F16) {
    _Float16 half = x;
    memcpy(&bits, &half, 2);
  }
  static_cast<uint16_t *>(p)[i] = bits;
}
