/* value * multiplier * 2^(shift - 31), rounded twice: half up, then half away from zero.
   A positive shift is to the left and comes before the product. */
static int32_t requantize_double(int32_t value, int32_t multiplier, int32_t shift)
{
    if (shift > 0) {
        return high_multiply(signed_bits((uint32_t)value << shift), multiplier);
    }
    return (int32_t)divide_by_power(high_multiply(value, multiplier), -shift);
}
